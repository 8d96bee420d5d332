"""The CPU, through onnxruntime: host memory is device memory, so the syncs have nothing to do.

A program keeps one binding a lane range and binds again only what changed, so a decode step costs
little Python. Memory is bound as input and output at once: onnxruntime writes it in place.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from flm.core.tensor import TensorSpec
from flm.devices.device import LOGITS, OUT, Array, Buffer, zeros
from flm.errors import BadModelFile, DeviceFailed, PassCancelled

if TYPE_CHECKING:
    import onnxruntime

# How long a worker waits for the next operator before it sleeps: enough to stay awake through a
# pass. onnxruntime's own, longer wait doubles a pass's time where other programs want the cores.
SPIN_US = 60

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
}


class CpuBuffer:
    def __init__(self, spec: TensorSpec, array: Array, root: "CpuBuffer | None" = None) -> None:
        import onnxruntime

        self._spec, self._array = spec, array
        self.root = root or self
        self._parts: dict[tuple[int, int], CpuBuffer] = {}
        # Refers to the array's memory, does not copy it.
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy(array)

    @property
    def spec(self) -> TensorSpec:
        return self._spec

    def array(self) -> Array:
        return self._array

    def part(self, start: int, stop: int) -> "CpuBuffer":
        if (start, stop) not in self._parts:
            array = self._array[start:stop]
            spec = TensorSpec(self._spec.name, array.shape, self._spec.dtype)
            self._parts[start, stop] = CpuBuffer(spec, array, self.root)
        return self._parts[start, stop]

    def to_device(self, rows: range | None = None) -> None:
        """Nothing: there is one copy."""

    def to_host(self, rows: range | None = None) -> None:
        """Nothing: there is one copy."""


class Run:
    """Of a session, to be begun; it may be cancelled before, too."""

    def __init__(self, *, gives_back: bool = False) -> None:
        """`gives_back`: the memory that it took, which another would take again."""
        import onnxruntime

        self.options = onnxruntime.RunOptions()
        self.options.log_severity_level = 4  # a cancelled run is not an error to print
        if gives_back:
            self.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    @property
    def cancelled(self) -> bool:
        return bool(self.options.terminate)

    def cancel(self) -> None:
        self.options.terminate = True

    @contextmanager
    def under_way(self, over: str = "") -> Iterator[None]:
        """Raises DeviceFailed, which tells what it failed over, PassCancelled."""
        try:
            yield
        except Exception as error:  # onnxruntime's own types are not public
            if self.cancelled:
                raise PassCancelled("the pass was cancelled", fix="none needed") from error
            raise DeviceFailed(
                f"onnxruntime failed{over}: {error}", fix="see docs/troubleshooting.md"
            ) from error


class CpuProgram:
    """One loaded graph. `run` is for one thread; `cancel` may come from any."""

    grid = 1

    def __init__(self, session: "onnxruntime.InferenceSession") -> None:
        self._session = session
        self._inputs = _specs(session.get_inputs())
        self._outputs = _specs(session.get_outputs())
        # (name in `buffers`, name in the graph, whether it is an output)
        self._slots = [(name, name, False) for name in self._inputs]
        self._slots += [(name.removesuffix(OUT), name, True) for name in self._outputs]
        self._bindings: dict[int, tuple[Any, dict[str, CpuBuffer]]] = {}
        self._root: CpuBuffer | None = None
        self._memory = next((n.removesuffix(OUT) for n in self._outputs if n.endswith(OUT)), LOGITS)
        self._lock = Lock()
        self._running: Run | None = None

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        return self._outputs

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        binding, run = self._bound(buffers), Run()
        with self._lock:
            self._running = run
        try:
            with run.under_way():
                self._session.run_with_iobinding(binding, run.options)
        finally:
            with self._lock:
                self._running = None

    def cancel(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.cancel()

    def _bound(self, buffers: Mapping[str, Buffer]) -> Any:
        """The binding of these lanes, brought up to date with `buffers`."""
        memory = buffers[self._memory]
        assert isinstance(memory, CpuBuffer), f"{self._memory} is not on this device"
        if memory.root is not self._root:
            self._bindings.clear()  # memory grew: what was bound before would keep it alive
            self._root = memory.root
        if id(memory) not in self._bindings:
            self._bindings[id(memory)] = (self._session.io_binding(), {})
        binding, bound = self._bindings[id(memory)]
        for name, graph_name, is_output in self._slots:
            buffer = buffers[name]
            if bound.get(graph_name) is buffer:
                continue
            assert isinstance(buffer, CpuBuffer), f"{name} is not on this device"
            if is_output:
                binding.bind_ortvalue_output(graph_name, buffer.value)
            else:
                binding.bind_ortvalue_input(graph_name, buffer.value)
            bound[graph_name] = buffer  # held, so that its identity stays its own
        return binding


class CpuDevice:
    def __init__(self, *, threads: int) -> None:
        self._threads = threads

    @property
    def name(self) -> str:
        return "cpu"

    def allocate(self, spec: TensorSpec) -> CpuBuffer:
        return CpuBuffer(spec, zeros(spec))

    def load(self, graph: Path) -> CpuProgram:
        return CpuProgram(open_session(str(graph), graph.parent, threads=self._threads))

    def close(self) -> None:
        """Nothing is held but what programs and buffers hold themselves."""


def open_session(
    model: str | bytes, folder: Path, *, threads: int
) -> "onnxruntime.InferenceSession":
    """Of a graph's path or its bytes; its weights are in `folder`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    if isinstance(model, bytes):
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own types are not public
        raise BadModelFile(
            f"onnxruntime cannot load a graph of {folder}: {error}",
            fix="remove the compiled folder; it is made again at the next start",
        ) from error


def _specs(nodes: list[Any]) -> dict[str, TensorSpec]:
    """Symbolic sizes are given as 0."""
    return {
        node.name: TensorSpec(
            node.name,
            tuple(size if isinstance(size, int) else 0 for size in node.shape),
            _DTYPES[node.type],
        )
        for node in nodes
    }
