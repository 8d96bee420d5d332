"""What can go wrong outside our code. A bug of ours is an AssertionError instead.

* FlmError
  - BadRequest                400  a field is missing, of the wrong type or out of range
    · PromptTooLong           400  context_length_exceeded
    · UnsupportedFeature      400  asked for something with an effect that we cannot give
  - Unauthorized              401
  - HostNotAllowed            403
  - OriginNotAllowed          403
  - ModelNotFound             404
  - NoSuchPath                404
  - NoSuchMethod              405
  - RequestTimeout            408  a head or a body that does not arrive in time
  - NoModelLoaded             409  asked of whichever is loaded, and none is
  - BodyTooLarge              413
  - QueueFull                 429  with Retry-After
  - ModelLoading              503  with Retry-After
  - ServerStopping            503  with Retry-After
  - BadSettings                -   a flag, flm.toml key or FLM_ variable
  - BadModelFile              500  truncated, foreign or hostile weights, template or tokenizer
    · UnsupportedModel        500  a good file of an architecture or quantisation we lack
  - BadKernelPackage           -   for the NPU: foreign, cut short, of another toolchain or device
  - DownloadFailed             -   network, hash or interrupted pull
  - NoRoom                    507  disk or memory
  - DeviceUnavailable          -   the device cannot be opened or failed its self-test
  - DeviceFailed              500  a pass failed; the request ends, the server does not
    · PassCancelled            -   a pass was ended on purpose (never reaches a client)
  - GrammarFailed             500  a reply could not be held to what was asked; others go on
  - DeviceLost                500  it ended with all it held; what ran starts over, within limits
    · DeviceFault             500  by a mistake of ours, which would come again: what ran fails
  - ServerAddressInUse         -
  - NoServer                   -   a command that asks a running server finds none
"""


class FlmError(Exception):
    """Shown to the user as two lines: what happened, and what to do about it."""

    status = 500
    type = "server_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, *, fix: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.param = param


class BadRequest(FlmError):
    status = 400
    type = "invalid_request_error"


class PromptTooLong(BadRequest):
    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, context_length: int) -> None:
        # Clients parse this wording (vLLM's); both numbers are wanted.
        super().__init__(
            f"This model's maximum context length is {context_length} tokens. "
            f"However, your prompt contains {prompt_tokens} input tokens.",
            fix="start a new chat, or start the server with a larger --ctx-len",
            param="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class UnsupportedFeature(BadRequest):
    code = "unsupported_parameter"


class Unauthorized(FlmError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class HostNotAllowed(FlmError):
    status = 403
    type = "invalid_request_error"
    code = "host_not_allowed"


class OriginNotAllowed(FlmError):
    status = 403
    type = "invalid_request_error"
    code = "origin_not_allowed"


class ModelNotFound(FlmError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class NoSuchPath(FlmError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class NoSuchMethod(FlmError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(FlmError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class BodyTooLarge(FlmError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class NoModelLoaded(FlmError):
    status = 409
    type = "invalid_request_error"
    code = "model_not_loaded"


class QueueFull(FlmError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 2  # unless there is an estimate


class ModelLoading(FlmError):
    status = 503
    code = "model_loading"
    retry_after_s = 5


class ServerStopping(FlmError):
    status = 503
    code = "server_stopping"
    retry_after_s = 5


class BadSettings(FlmError):
    pass


class BadModelFile(FlmError):
    code = "bad_model_file"

    def __init__(
        self, message: str, *, fix: str = "pull the model again, or use another copy of it"
    ) -> None:
        super().__init__(message, fix=fix)


class UnsupportedModel(BadModelFile):
    pass


class BadKernelPackage(FlmError):
    def __init__(
        self, message: str, *, fix: str = "build it again: flm kernels build MODEL"
    ) -> None:
        super().__init__(message, fix=fix)


class DownloadFailed(FlmError):
    pass


class NoRoom(FlmError):
    status = 507
    code = "no_room"


class DeviceUnavailable(FlmError):
    pass


class DeviceFailed(FlmError):
    code = "device_failed"


class PassCancelled(DeviceFailed):
    pass


class GrammarFailed(FlmError):
    code = "grammar_failed"


class DeviceLost(FlmError):
    code = "device_lost"
    losses_max = 3  # in a row, in passes for the same request


class DeviceFault(DeviceLost):
    code = "device_failed"
    losses_max = 1


class ServerAddressInUse(FlmError):
    pass


class NoServer(FlmError):
    pass
