"""Golden vectors of both designs."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Golden
from npu_kernels.qlinear.golden import product
from npu_kernels.qlinear8 import reference
from npu_kernels.qlinear8.reference import CENTRE


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    if design == "qlinear8":
        return product(reference.pack, reference.qlinear8, CENTRE, parameters, random)
    return product(
        reference.pack_by16, reference.qlinear8_by16, CENTRE, parameters, random, block=16
    )
