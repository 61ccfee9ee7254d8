"""Compiles every CUDA kernel of the package for every architecture, without a GPU.

    python .ci/compile_cuda.py              every kernel for one architecture; a third for sm_70
    python .ci/compile_cuda.py --every      every kernel for every architecture
    python .ci/compile_cuda.py --quick      one architecture for each NVRTC
    python .ci/compile_cuda.py --arch sm_90 --arch sm_120
    python .ci/compile_cuda.py --op layer_norm --op rms_norm

The kernels come from `megafuse.registry.catalog.jobs()` and `megafuse.decode.kernel.catalog()`,
their options from `megafuse.runtime.nvrtc.options()`: what is compiled here is what a GPU would be
given. A process can load only one major version of cuda-bindings, so this script hands the jobs as
JSON to itself, once for each toolkit: version 13 in this environment where it has that (pip install
-e ".[nvrtc]"), else in `.venv-nvrtc13`, and version 12 in `.venv-nvrtc12`; it makes these when
missing. Those workers import no torch.

A kernel's variants differ in little that an architecture cares about. So each is compiled by
NVRTC 13 for one of its architectures in turn, and one in three by NVRTC 12 for sm_70, which has the
fewest instructions to choose from: every architecture gets its share of the variants.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
import zlib
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "src" / "megafuse" / "kernels"

# What a user may have: NVRTC 13 dropped sm_70, NVRTC 12 comes with older torch builds.
ARCHITECTURES = {
    13: ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
    12: ("sm_70", "sm_80", "sm_86", "sm_90"),
}
# The oldest of each: fewest instructions to choose from, so the likeliest to fail.
QUICK = {13: ("sm_75",), 12: ("sm_70",)}

PACKAGES = {
    13: ("cuda-core==1.2.2", "cuda-bindings==13.0.3", "nvidia-cuda-nvrtc==13.0.88", "numpy"),
    12: ("cuda-core==1.2.2", "cuda-bindings==12.9.10", "nvidia-cuda-nvrtc-cu12==12.9.86", "numpy"),
}
# NVRTC 12 compiles one kernel in three for sm_70, and one in 16 for another of its architectures,
# in turn: what NVRTC 13 takes there, 12 takes as well.
SHARES = {12: (3, 16)}
PROCESSES = 2
LOGS_SHOWN = 10  # one mistake in a shared header fails every kernel


class Job(NamedTuple):
    """One kernel; `options` are ProgramOptions but for the architecture, `only` the one
    architecture that it is for, if so."""

    name: str
    source: str
    options: dict[str, str | bool]
    only: str | None


class Compiled(NamedTuple):
    """One kernel for one architecture; `error` is empty when it compiled."""

    kernel: str
    arch: str
    error: str


def compile_one(job: Job, arch: str) -> Compiled:
    from cuda.core import Program, ProgramOptions

    fields = {**job.options, "arch": arch, "name": job.name, "include_path": str(INCLUDE)}
    try:
        Program(job.source, "c++", ProgramOptions(**fields)).compile("cubin")
    except Exception as error:  # NVRTC's log is in the message, whatever the type
        return Compiled(job.name, arch, str(error).strip() or repr(error))
    return Compiled(job.name, arch, "")


def nvrtc_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC does not answer: {status}")
    return major, minor


def work(major: int, jobs: list[Job], archs: list[str], share: bool) -> int:
    """Compiles all jobs with this environment's NVRTC; returns how many failed."""
    found = nvrtc_version()
    if found[0] != major:
        raise SystemExit(f"expected NVRTC {major}, this environment has {found[0]}.{found[1]}")
    start = time.perf_counter()
    failures = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        pending = [
            pool.submit(compile_one, job, arch)
            for i, job in enumerate(jobs)
            for arch in (wanted(job, archs, i, SHARES.get(major)) if share else every(job, archs))
        ]
        for future in as_completed(pending):
            done = future.result()
            if done.error:
                failures.append(done)
                log = f"\n{done.error}\n" if len(failures) <= LOGS_SHOWN else ""
                print(f"FAILED {done.kernel} for {done.arch}{log}", flush=True)
    seconds = time.perf_counter() - start
    print(
        f"NVRTC {found[0]}.{found[1]}: {len(jobs)} kernels, {len(archs)} architectures "
        f"({' '.join(archs)}): {len(failures)} of {len(pending)} failed, {seconds:.1f} s",
        flush=True,
    )
    return len(failures)


def every(job: Job, archs: list[str]) -> list[str]:
    """The architectures for a kernel: the one it is for, else all."""
    if job.only is None:
        return archs
    return [job.only] if job.only.rstrip("af") in archs else []  # sm_90a is a feature set of sm_90


def wanted(job: Job, archs: list[str], turn: int, shares: tuple[int, int] | None) -> list[str]:
    """Those that are enough: one of them, in turn; or by shares the first, another, or none."""
    possible = every(job, archs)
    if not possible or shares is None:
        return possible and [possible[turn % len(possible)]]
    first, *others = possible
    # By name: in the catalog's order, one in three might always be the same dtype.
    chosen = [first] if zlib.crc32(job.name.encode()) % shares[0] == 0 else []
    if others and turn % shares[1] == 0:
        chosen.append(others[turn // shares[1] % len(others)])
    return chosen


def interpreter(major: int) -> str:
    """A Python whose NVRTC is of this major version: this one, or that of an environment which is
    made when missing or made with other versions."""
    if here() == major:
        return sys.executable
    folder = ROOT / f".venv-nvrtc{major}"
    python, stamp = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join(PACKAGES[major])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {folder.name}: {' '.join(PACKAGES[major])}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[major]], check=True)
        stamp.write_text(wanted)
    return str(python)


def here() -> int | None:
    """The major version of this environment's NVRTC, or None when there is none."""
    try:
        import cuda.core  # noqa: F401

        return nvrtc_version()[0]
    except Exception:  # not installed, or no libnvrtc: ImportError, RuntimeError, …
        return None


def catalog(ops: list[str]) -> list[Job]:
    """Every kernel that the package can ask NVRTC for, or those of some ops."""
    from megafuse.decode.kernel import catalog as decoding
    from megafuse.registry import catalog
    from megafuse.runtime.gemm_sm90 import ARCH as HOPPER
    from megafuse.runtime.nvrtc import options

    found = list(catalog.jobs())
    # sm_75 has no copies that go on; on Hopper the kernel asks for what only sm_90a has.
    newer = [HOPPER if arch == "sm_90" else arch for arch in ARCHITECTURES[13] if arch != "sm_75"]
    for i, (name, source) in enumerate(decoding()):
        found.append(catalog.Job(name, "decode", source, arch=newer[i % len(newer)]))
    unknown = set(ops) - {job.op for job in found}
    if unknown:
        known = ", ".join(sorted({job.op for job in found}))
        raise SystemExit(f"no kernels of {', '.join(sorted(unknown))}; there are those of {known}")
    made = []
    for job in found:
        if not ops or job.op in ops:
            fields = {k: v for k, v in options("", job.contract).items() if k != "arch"}
            made.append(Job(job.name, job.source, fields, job.arch))
    return made


def chosen(major: int, asked: list[str], quick: bool) -> list[str]:
    if asked:
        return [arch for arch in ARCHITECTURES[major] if arch in asked]
    return list((QUICK if quick else ARCHITECTURES)[major])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawTextHelpFormatter
    )
    known = sorted({a for archs in ARCHITECTURES.values() for a in archs}, key=lambda a: int(a[3:]))
    parser.add_argument("--quick", action="store_true", help="one architecture for each NVRTC")
    parser.add_argument("--every", action="store_true", help="every kernel for every architecture")
    parser.add_argument("--arch", action="append", default=[], choices=known, help="only this one")
    parser.add_argument("--op", action="append", default=[], help="only this one's kernels")
    parser.add_argument(
        "--jobs", type=Path, help="[[name, source, options, null], …] as JSON, not the catalog"
    )
    parser.add_argument("--worker", type=int, choices=ARCHITECTURES, help=argparse.SUPPRESS)
    args = parser.parse_args()

    given = json.loads(args.jobs.read_text()) if args.jobs else None
    jobs = catalog(args.op) if given is None else [Job(*job) for job in given]
    if args.worker:
        archs = chosen(args.worker, args.arch, args.quick)
        return 1 if work(args.worker, jobs, archs, not (args.every or args.arch)) else 0
    if not jobs:
        raise SystemExit("the catalog names no kernels: nothing was checked")

    failed = False
    with tempfile.TemporaryDirectory() as folder:
        handed = Path(folder) / "jobs.json"
        handed.write_text(json.dumps(jobs))
        for major in ARCHITECTURES:
            archs = chosen(major, args.arch, args.quick)
            if not archs:
                continue
            command = [interpreter(major), __file__, "--worker", str(major), "--jobs", str(handed)]
            if args.arch:
                command += [word for arch in archs for word in ("--arch", arch)]
            command += [option for option in ("--quick", "--every") if option in sys.argv]
            failed |= subprocess.run(command).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
