"""What can be wrong with a stream; a fault has its rule's name."""


class StreamFault(Exception):
    """The firmware or the array would refuse this stream, hang on it, or do something else."""

    def __init__(self, rule: str, where: str, what: str, fix: str = "") -> None:
        super().__init__(f"{rule}: {where}: {what}" + (f" ({fix})" if fix else ""))
        self.rule, self.where, self.what, self.fix = rule, where, what, fix
