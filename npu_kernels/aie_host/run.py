"""Calls of compiled kernels: within this process, or in a sanitized program of their own."""

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from npu_kernels.aie_host.memory import Array

MESSAGE_BYTES = 256
PROGRAM_SECONDS_MAX = 120


class KernelFault(RuntimeError):
    """A kernel did what a core must not: the text says what."""


class Library:
    """A shared object; its kernels run here."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def call(self, symbol: str, arguments: Sequence[Array | int]) -> None:
        """Arrays are changed in place, unless the kernel is faulted."""
        count = len(arguments)
        words, sizes = (ctypes.c_int64 * count)(), (ctypes.c_uint64 * count)()
        for index, argument in enumerate(arguments):
            if isinstance(argument, int):
                words[index] = argument
            else:
                words[index], sizes[index] = argument.ctypes.data, argument.nbytes
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        function = ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p)
        if self._library.aie_host_call(function, count, words, sizes, message):
            raise KernelFault(f"{symbol}: {message.value.decode()}")


class Program:
    """An executable that makes one call: sanitizers must be there from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def call(self, symbol: str, arguments: Sequence[Array | int]) -> None:
        """As Library.call."""
        arrays = [argument for argument in arguments if not isinstance(argument, int)]
        sizes = [0 if isinstance(each, int) else each.nbytes for each in arguments]
        head = np.array([len(arguments), *sizes], np.uint64).tobytes()
        body = [
            np.int64(each).tobytes() if isinstance(each, int) else each.tobytes()
            for each in arguments
        ]
        done = subprocess.run(
            [self._path, symbol],
            input=head + b"".join(body),
            capture_output=True,
            timeout=PROGRAM_SECONDS_MAX,
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        )
        if done.returncode:
            raise KernelFault(f"{symbol}: {done.stderr.decode(errors='replace')}")
        start = 0
        for array in arrays:
            written = np.frombuffer(done.stdout, np.uint8, array.nbytes, start)
            array.reshape(-1).view(np.uint8)[:] = written
            start += array.nbytes
