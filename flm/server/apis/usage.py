"""What a request cost, as OpenAI, FastFlowLM (inside `usage`), llama.cpp and Anthropic say it."""

from collections.abc import Sequence
from typing import Any

from flm.core.event import Usage
from flm.engine.answer import Answer


def usage(prompts: Sequence[Sequence[Answer]], *, context_length: int) -> dict[str, Any]:
    """Of all answers together: a prompt counts once, however many it got."""
    leaders = [_usage(answers[0]) for answers in prompts]
    answers = [answer for group in prompts for answer in group]
    prompt_tokens = sum(leader.prompt_tokens for leader in leaders)
    completion_tokens = sum(_usage(answer).completion_tokens for answer in answers)
    first = leaders[0]
    held = first.prompt_tokens + first.completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(leader.cached_tokens for leader in leaders)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)
        },
        "active_kv_tokens": held,
        "max_kv_token_capacity": context_length,
        "kv_token_occupancy_rate_percentage": round(100 * held / context_length, 2),
        "prefill_duration_ttft": round(first.prefill_s, 6),
        "decoding_duration": round(first.decode_s, 6),
        "prefill_speed_tps": round(first.read_per_s, 2),
        "decoding_speed_tps": round(first.written_per_s, 2),
    }


def timings(prompts: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    """llama.cpp's, of the first answer."""
    first = _usage(prompts[0][0])
    read = first.prompt_tokens - first.cached_tokens
    return {
        "cache_n": first.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(first.prefill_s * 1e3, 3),
        "prompt_per_token_ms": round(_ratio(first.prefill_s * 1e3, read), 3),
        "prompt_per_second": round(first.read_per_s, 2),
        "predicted_n": first.completion_tokens,
        "predicted_ms": round(first.decode_s * 1e3, 3),
        "predicted_per_token_ms": round(_ratio(1e3, first.written_per_s), 3),
        "predicted_per_second": round(first.written_per_s, 2),
    }


def message_usage(answer: Answer) -> dict[str, Any]:
    """Anthropic's, as far as it is known: a prompt's tokens are `input_tokens` or cached ones.

    What is kept of a prompt is not the client's to pay for: nothing counts as cache creation.
    """
    spent = answer.usage
    cached = spent.cached_tokens if spent else answer.cached_tokens
    return {
        "input_tokens": len(answer.request.prompt.tokens) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": spent.completion_tokens if spent else 0,
        "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": None,
        "inference_geo": None,
    }


def response_usage(answer: Answer) -> dict[str, Any]:
    """The same for /v1/responses."""
    spent = _usage(answer)
    return {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": spent.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": spent.prompt_tokens + spent.completion_tokens,
    }


def _usage(answer: Answer) -> Usage:
    assert answer.usage is not None, "an answer is counted when it has ended"
    return answer.usage


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
