"""What one call ran.

    Record ── the call: its wall time with spread, when the device was busy, memory
      ├─ Operation ── one ATen call, or one call into a user's extension, in the order of the call
      │    ├─ Where ── the user's line that caused it
      │    ├─ Kernel ── what it launched on a GPU; none on a CPU
      │    └─ Touched ── a tensor that it reads or writes
      └─ HostCall ── time on the host that is no operation: a data loader, printing, Python

Times are seconds, and starts count from the beginning of the call. Sizes are bytes. On a CPU an
operation's `host_start` and `host_seconds` are when it ran; on a GPU they are when the host
launched it, and `device_start` and `device_seconds` are when its kernels ran. `seconds` is the one
that counts on the device. What could not be measured is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# What an operation does with its elements, which decides what it can be fused with.
KINDS = (
    "pointwise",  # every result from the elements at its place
    "reduction",  # a sum, a maximum, a softmax: rows become numbers, or numbers of whole rows
    "product",  # a matrix product, a convolution, a linear layer
    "attention",  # the library's fused attention
    "copy",  # the same numbers elsewhere: another layout, dtype or device
    "fill",  # numbers from nothing: zeros, random ones
    "index",  # gather, scatter, embedding, nonzero
    "read",  # a number that goes to Python: .item()
    "view",  # nothing is moved; only what costs time on the host is kept
    "optimizer",  # a step over lists of parameters
    "extension",  # no operation of PyTorch's: a user's kernel
    "other",
)
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Where:
    """A line of the user's code. `file` is empty where none is known."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""  # the line itself, without indentation

    def __str__(self) -> str:
        """train.py:12, with the last part of the path."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else "unknown line"


@dataclass(frozen=True)
class Touched:
    """A tensor as an operation sees it. Two with the same `value` hold the same numbers: the same
    memory, and nothing wrote to it in between."""

    value: int
    storage: int  # the memory that it lies in, numbered in the order of the call
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "float32"
    device: str  # "cpu", "cuda"
    bytes: int  # of the elements that are there: an expanded tensor counts once
    aligned: bool = True  # its first element lies at a multiple of 16 bytes
    outside: bool = False  # it was there before the call: an argument, a parameter
    offset: int = 0  # of its first element, in its memory


@dataclass(frozen=True)
class Kernel:
    """One launch on a GPU."""

    name: str
    start: float
    seconds: float
    stream: int = 0
    kind: str = "kernel"  # "kernel", "memcpy" or "memset"


@dataclass
class Operation:
    """One ATen call, or one call into an extension."""

    index: int
    name: str  # "aten.mul.Tensor", "mylib.linear_relu.default", "my_extension.forward"
    kind: str  # of KINDS
    phase: str  # of PHASES
    where: Where
    host_start: float
    host_seconds: float
    device_start: float | None = None
    device_seconds: float | None = None
    kernels: list[Kernel] = field(default_factory=list)
    reads: list[Touched] = field(default_factory=list)
    writes: list[Touched] = field(default_factory=list)
    bytes_moved: int = 0  # that it must move: what it reads and writes, each once
    flops: int = 0
    allocated: int = 0  # bytes of new memory for its results
    roof: str = ""  # which roof binds: "memory", "cache", "compute", "call", or "compiled"
    floor: float = 0.0  # seconds: the least that the roof allows
    roof_share: float | None = None  # floor / seconds
    waits: bool = False  # the host waits here until the device is done
    autocast: bool = False  # it ran under autocast
    numbers: str = ""  # its arguments that are no tensors, as text

    @property
    def seconds(self) -> float:
        """On the device that does the work."""
        return self.host_seconds if self.device_seconds is None else self.device_seconds

    @property
    def short(self) -> str:
        """mul, of aten.mul.Tensor; of others the first two parts."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "aten" and len(parts) > 1 else ".".join(parts[:2])


@dataclass
class HostCall:
    """Time on the host between operations that a call of the user's takes."""

    name: str  # "DataLoader.__next__", "print", "time.sleep"
    kind: str  # "data loader", "print", "python"
    where: Where
    start: float
    seconds: float
    inside: list[int] = field(default_factory=list)  # operations that ran meanwhile


@dataclass
class Record:
    """One call, and the calls that were timed like it."""

    name: str
    device: str  # "cpu" or "cuda"
    mode: str  # "forward" or "forward+backward"
    seconds: float  # of a call, the median
    low: float
    high: float
    calls: int  # that were timed
    first_seconds: float  # of the first call, with everything that is set up then
    operations: list[Operation] = field(default_factory=list)
    host_calls: list[HostCall] = field(default_factory=list)
    busy: float = 0.0  # seconds that the device computes in a call; on a CPU, operations
    host: float = 0.0  # seconds that the host is busy with a call, without waiting
    peak_bytes: int | None = None  # most memory at once, what was there before not counted
    compiled: bool = False  # torch.compile's, or ours: the operations are those of its kernels
    graph_breaks: list[str] = field(default_factory=list)
    recompiled: int = 0  # how often it was compiled again in the calls after the first
    allocator_retries: int = 0
    where: Where = field(default_factory=Where)  # where the callable is defined
    notes: list[str] = field(default_factory=list)  # what could not be seen, or be put back

    @property
    def idle(self) -> float:
        """Seconds in which the device waits for the host."""
        return max(0.0, self.seconds - self.busy)

    @property
    def noise(self) -> float:
        """Seconds that two calls differ by without a reason."""
        return self.high - self.low

    @property
    def bytes_moved(self) -> int:
        return sum(op.bytes_moved for op in self.operations)

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.operations)

    @property
    def launches(self) -> int:
        """Kernels on a GPU, operations that do something on a CPU."""
        if self.device == "cuda":
            return sum(len(op.kernels) for op in self.operations)
        return sum(op.kind != "view" for op in self.operations)
