"""pyxrt's enumerations. As pybind11's, they equal only their own kind; int() gives the number."""

from __future__ import annotations

from enum import Enum


class Numbered(Enum):
    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    @classmethod
    def _missing_(cls, value: object) -> Numbered:
        """A number without a name is a value all the same, and prints as `???`."""
        unnamed = object.__new__(cls)
        unnamed._name_ = "???"
        unnamed._value_ = value
        return unnamed


class xclBOSyncDirection(Numbered):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1
    XCL_BO_SYNC_BO_GMIO_TO_AIE = 2
    XCL_BO_SYNC_BO_AIE_TO_GMIO = 3


class ert_cmd_state(Numbered):
    """RUNNING, 3, is not among them: pyxrt does not bind it."""

    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11


RUNNING = 3


class xrt_info_device(Numbered):
    bdf = 0
    interface_uuid = 1
    kdma = 2
    max_clock_frequency_mhz = 3
    m2m = 4
    name = 5  # type: ignore[assignment]
    nodma = 6
    offline = 7
    electrical = 8
    thermal = 9
    mechanical = 10
    memory = 11
    platform = 12
    pcie_info = 13
    host = 14
    dynamic_regions = 16
    vmr = 17


class xrt_msg_level(Numbered):
    emergency = 0
    alert = 1
    critical = 2
    error = 3
    warning = 4
    notice = 5
    info = 6
    debug = 7


class buffer_flags(Numbered):
    """bo.flags"""

    normal = 0
    cacheable = 1 << 24
    device_only = 1 << 28
    host_only = 1 << 29
    p2p = 1 << 30
    svm = 1 << 27


class context_mode(Numbered):
    """hw_context.access_mode"""

    exclusive = 0
    shared = 1
