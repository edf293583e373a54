"""What the client was like while it measured: so that its own slowness is never taken for the server's."""

import msgspec


class ClientFacts(msgspec.Struct, frozen=True):
    start_ns: int  # the zero of every record's times, on this machine's monotonic clock
    end_ns: int
    outcome: str  # 'complete', 'interrupted' or 'server gone'
    planned: int
    sent: int
    cpu_s: float  # of the process on the wire, while the load ran
    reads: int
    ticks_late_ns: list[int]  # how late the loop came to each of its ticks, ten a second
    kernel_stamps: bool  # times are the kernel's receive stamps, else those of the reads
    priority: str = ""  # of the wire while the load ran: SCHED_RR 1, slice 0.1 ms, core 7; '': as any process
    waited_s: float | None = None  # the wire was ready to run and had no core; None: this system doesn't count it
    others_cpu: float | None = None  # cores kept busy by others than dyno and its engine, on average; None: not known

    # Requests on connections on which the server said more than was asked: whose answers these are isn't known.
    unasked: list[int] = []

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns
