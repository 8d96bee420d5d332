"""Golden vectors, as qgemm's."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Golden
from npu_kernels.qgemm.golden import product
from npu_kernels.qgemm8.reference import qgemm8
from npu_kernels.qlinear8 import reference


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    return product(reference.pack, qgemm8, reference.CENTRE, parameters, random)
