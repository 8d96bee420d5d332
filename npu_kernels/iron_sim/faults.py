"""What can be wrong with a design; a fault has its rule's name."""


class DesignFault(Exception):
    """The array could not run this design, or would run it wrongly."""

    def __init__(self, rule: str, where: str, what: str, fix: str = "") -> None:
        super().__init__(f"{rule}: {where}: {what}" + (f" ({fix})" if fix else ""))
        self.rule, self.where, self.what, self.fix = rule, where, what, fix


class Deadlock(DesignFault):
    """Nothing can move any more; `cycle` names who waits for whom."""

    def __init__(self, cycle: tuple[str, ...], closed: bool) -> None:
        where = "who waits for whom" if closed else "nobody will end this wait"
        super().__init__("deadlock", where, " -> ".join(cycle))
        self.cycle, self.closed = cycle, closed


def not_simulated(call: str) -> NotImplementedError:
    return NotImplementedError(f"iron_sim does not run {call}; it needs mlir-aie")
