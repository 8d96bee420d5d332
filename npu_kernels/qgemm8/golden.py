"""Golden vectors of both designs, as qgemm's."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.golden import Golden
from npu_kernels.qgemm.golden import product
from npu_kernels.qgemm8.reference import qgemm8, qgemm8_by16
from npu_kernels.qlinear8.reference import CENTRE, pack, pack_by16


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    if design == "qgemm8":
        return product(pack, qgemm8, CENTRE, parameters, random)
    return product(pack_by16, qgemm8_by16, CENTRE, parameters, random, block=16)
