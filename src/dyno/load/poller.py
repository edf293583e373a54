"""epoll where there is one, else kqueue, behind the few calls that the wire makes."""

import select
import sys

if sys.platform == "linux":
    IN, OUT, ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP

    Poller = select.epoll
else:  # macOS and the BSDs. Built from its documentation; never run there by us.
    IN, OUT, ERROR = 1, 4, 8

    class Poller:  # type: ignore[no-redef]
        def __init__(self) -> None:
            self._queue = select.kqueue()
            self._masks: dict[int, int] = {}

        def register(self, fd: int, mask: int) -> None:
            self._masks[fd] = 0
            self.modify(fd, mask)

        def modify(self, fd: int, mask: int) -> None:
            before, self._masks[fd] = self._masks[fd], mask
            changes = [
                select.kevent(fd, kind, select.KQ_EV_ADD if mask & bit else select.KQ_EV_DELETE)
                for bit, kind in ((IN, select.KQ_FILTER_READ), (OUT, select.KQ_FILTER_WRITE))
                if (mask ^ before) & bit
            ]
            if changes:
                self._queue.control(changes, 0)

        def unregister(self, fd: int) -> None:
            self.modify(fd, 0)
            del self._masks[fd]

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            return [
                (int(e.ident), IN if e.filter == select.KQ_FILTER_READ else OUT)
                for e in self._queue.control(None, 1024, timeout)
            ]

        def close(self) -> None:
            self._queue.close()
