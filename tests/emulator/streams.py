"""What CUDA leaves to the programmer: the order of streams, and what may be captured as a graph.

Every piece of work gets a number in its stream, every stream knows which work of the others is over (a vector
clock), events carry that knowledge. Two streams that touch the same memory in no known order are an error,
whatever order they happened to take.
"""

from __future__ import annotations


class OrderError(RuntimeError):
    """Streams meet in memory without an event between them, or a capture does what a graph cannot hold."""


class EmulatedStream:
    """A queue of work: its name, and how far each stream is known to have come."""

    def __init__(self, device, name: str) -> None:
        self.device, self.name = device, name
        self.known: dict[str, int] = {name: 0}
        self.behind: list[int] = []
        """For every copy: pieces of work of the current stream that it need not wait for."""

    def mark(self) -> dict[str, int]:
        """An event: all that is over once this stream has come here."""
        return dict(self.known)

    def after(self, event: dict[str, int]) -> None:
        """Let later work wait for the event."""
        for name, number in event.items():
            self.known[name] = max(self.known.get(name, 0), number)

    def touch(self, arrays) -> None:
        """Work of this stream reads or writes these arrays."""
        self.known[self.name] += 1
        for array in arrays:
            owner = array.held
            while owner.base is not None and hasattr(owner.base, "base"):
                owner = owner.base
            touched = self.device.touches(owner)
            for name, number in touched.items():
                if name != self.name and self.known.get(name, 0) < number:
                    raise OrderError(f"stream {self.name} does not wait for stream {name} in shared memory")
            touched[self.name] = self.known[self.name]

    def copy(self, into, array) -> None:
        """Copy page-locked host memory to the device, beside the kernels of other streams."""
        self.device.refuse_in_capture("a copy from the host")
        if array.ctypes.data not in self.device.page_locked:
            raise OrderError("a copy beside kernels needs page-locked memory")
        assert into.dtype == array.dtype
        current = self.device.stream
        self.behind.append(current.known[current.name] - self.known.get(current.name, 0))
        self.touch([into])
        self.device.uploaded += array.nbytes
        into.held[...] = array


class Capture:
    """Launches kept instead of run, with their arguments as they were."""

    def __init__(self, device) -> None:
        self.device, self.launches = device, []

    def __call__(self) -> None:
        """Launch the graph on the current stream."""
        self.device.graph_launches += 1
        for launch in self.launches:
            self.device.run(*launch)
