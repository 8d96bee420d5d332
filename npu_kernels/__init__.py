"""Kernels for AMD's NPU, and what proves them where there is none. Imports neither flm nor aie."""
