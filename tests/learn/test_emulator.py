"""The GPU that watches: it counts what the rules of a GPU say, and names every kind of mistake."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
import torch

from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.emulator.run import Counted, Emulated, Kernel, Launch
from megafuse.learn.exercises.emulator.source import translated
from megafuse.learn.exercises.findings import Stop
from megafuse.learn.pictures import access
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.slow,  # each compiles
    pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler"),
]


@pytest.fixture(autouse=True, scope="module")
def compiled_hastily():
    """Each kernel runs once, on a few floats."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)


@pytest.fixture
def run(tmp_path):
    """Runs a kernel's body on x and out of 1024 floats; what it counted, and out."""

    def body(text: str, launch: Launch | None = None) -> tuple[Counted, torch.Tensor]:
        path = tmp_path / "k.cu"
        path.write_text(
            'extern "C" __global__ void k(Input x, Output out, Counter c, int n) {\n'
            f"int t = threadIdx.x;\n{text}\n}}\n"
        )
        arrays = {
            "x": torch.arange(1024.0),
            "out": torch.zeros(1024),
            "c": torch.zeros(1, dtype=torch.int32),
        }
        emulated = Emulated(path, Kernel("k", "IOCi"))
        launch = launch or Launch((1,), (64,), (1024,))
        return emulated.run(arrays, launch), arrays["out"]

    return body


# ---- counts


@pytest.mark.parametrize(
    ("index", "sectors"),
    [("t", 4), ("2 * t", 8), ("8 * t", 32), ("0", 1), ("t + 1", 5), ("63 - t", 4), ("t / 4", 1)],
)
def test_sectors_of_a_request(run, index, sectors):
    counted, _ = run(f"if (t < 32) out[t] = x[{index}];")
    assert counted.lines[3].sectors == sectors + 4  # and the store


@pytest.mark.parametrize(
    ("index", "passes"), [("t", 1), ("2 * t", 2), ("32 * t", 32), ("33 * t", 1), ("0", 1)]
)
def test_banks_of_a_request(run, index, passes):
    counted, _ = run(
        "__shared__ float s[1056];\nfor (int i = t; i < 1056; i += 64) s[i] = i;\n"
        f"__syncthreads();\nif (t < 32)\n out[t] = s[{index}];"
    )
    assert counted.lines[7].passes == passes


def test_lanes_that_run_a_line_alone(run):
    counted, _ = run("if (t % 4 == 0)\n out[t] = 1;\nelse\n out[t] = 2;")
    assert (counted.lines[4].requests, counted.lines[4].lanes) == (2, 16)
    assert (counted.lines[6].requests, counted.lines[6].lanes) == (2, 48)


def test_a_wide_load_is_one_request(run):
    counted, out = run(
        "float4 v = reinterpret_cast<const float4*>(x)[t];\n((float4*)out)[t] = v;\n"
        "*(float4*)(out + 256 + 4 * t) = *(const float4*)(x + 4 * t);"
    )
    assert torch.equal(out[:256], torch.arange(256.0))
    assert torch.equal(out[256:512], torch.arange(256.0))
    assert (counted.lines[3].requests, counted.lines[3].sectors) == (2, 32)
    assert (counted.lines[5].requests, counted.lines[5].sectors) == (4, 64)


def test_shuffles_barriers_and_atomics(run):
    counted, out = run(
        "float v = x[t];\n"
        "for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);\n"
        "__syncthreads();\natomicAdd(&out[0], t % 32 == 0 ? v : 0.0f);\n"
        "out[1 + t] = __shfl_sync(0xffffffffu, v, 0);"
    )
    assert out[0] == sum(range(64))
    assert out[40] == sum(range(32, 64))
    assert counted.lines[4].shuffles == 10
    assert counted.lines[5].barriers == 2
    assert counted.lines[6].atomics == 64


def test_a_float_of_shared_memory_or_0_is_a_float(run):
    """`?:` made an int of the two: a right kernel came out wrong."""
    _, out = run(
        "__shared__ float half[64];\n"
        "half[t] = t + 0.5f;\n"
        "__syncthreads();\n"
        "float either = t < 8 ? half[t] : 0, other = t < 8 ? 0 : half[t];\n"
        "float real = t < 8 ? half[t] : 0.25f;\n"
        "float sums = half[t] + half[t] - half[t] * 1 - 2 * -half[t];\n"
        "if (half[t] < half[63] && half[t] >= 0 && half[t] != 7) sums += half[t];\n"
        "out[t] = either + other + real * 2 + int(half[t]) + (half[t] ? 1 : 0) + sums;"
    )
    expected = [t + 0.5 + (2 * t + 1 if t < 8 else 0.5) + t + 1 for t in range(64)]
    expected = [e + (t + 0.5) * (4 if t < 63 else 3) for t, e in enumerate(expected)]
    assert out[:64].tolist() == expected


def test_blocks_meet_at_a_barrier_of_their_own(run):
    text = (
        "out[blockIdx.x] = 1;\n__syncthreads();\n"
        "if (t == 0) { __threadfence(); atomicAdd(c, 1u); while (%s < gridDim.x) {} }\n"
        "__syncthreads();\nif (t == 0) out[8 + blockIdx.x] = out[0] + out[1] + out[2];"
    ).replace("out[blockIdx.x] = 1", "if (t == 0) out[blockIdx.x] = 1")
    launch = Launch((3,), (64,), (1024,), at_once=3)
    for look in ("atomicAdd(c, 0u)", "*(volatile unsigned*)c"):
        _, out = run(text % look, launch)
        assert out[8:11].tolist() == [3, 3, 3]
    with pytest.raises(Fault) as fault:  # two have room, and wait for the third
        run(text % "atomicAdd(c, 0u)", Launch((3,), (64,), (1024,), at_once=2))
    assert fault.value.kind == Kind.DEADLOCK
    assert "1 blocks have not even begun" in fault.value.finding.found


_MEETING = """
import torch
from pathlib import Path
from megafuse.learn.exercises.emulator.run import Emulated, Kernel, Launch
from megafuse.runtime import cpp
path = Path("k.cu")
path.write_text(
    'extern "C" __global__ void k(Output out) { __syncthreads(); out[threadIdx.x] = 1; }'
)
cpp.compile_hastily(True)
out = torch.zeros(64)
Emulated(path, Kernel("k", "O")).run({"out": out}, Launch((1,), (64,)))
print(int(out.sum()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_threads_meet_where_the_compiler_checks_jumps(tmp_path):
    """As Ubuntu's compilers do by themselves: "longjmp causes uninitialized stack frame"."""
    compiler = cpp.find()
    checks = shlex.join([*compiler.command, "-D_FORTIFY_SOURCE=2"])
    ran = subprocess.run(
        [sys.executable, "-c", _MEETING],
        cwd=tmp_path,
        env=os.environ | {"CXX": checks},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == "64", ran.stderr


# ---- mistakes, each with its line


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("out[t] = x[t + 1000];", Kind.READ_OUTSIDE, "line 3: thread 24 of block 0 reads x[1024]"),
        ("out[t - 1] = 0;", Kind.WRITTEN_OUTSIDE, "writes out[-1]; out has 1024 floats"),
        ("__shared__ float s[4][8];\ns[t % 4][t] = 1;", Kind.READ_OUTSIDE, "line 4: thread 8"),
        ("float4 v = *(const float4*)(x + t);\nout[t] = v.x;", Kind.MISALIGNED, "from float 1 on"),
        (
            "out[0] = t;",
            *(Kind.TWO_WRITERS, "thread 1 of block 0 writes out[0] while thread 0 writes it"),
        ),
        # Read before anyone wrote it: the writer comes later, and a barrier is what is missing; or
        # nobody ever comes, and a barrier would not help.
        (
            "__shared__ float s[64];\ns[t] = t;\nout[t] = s[63 - t];",
            *(
                Kind.RACE,
                "line 4: thread 32 of block 0 writes s[32] while thread 31 reads it (line 5)",
            ),
        ),
        (
            "__shared__ float s[64];\nif (t) s[t] = t;\n__syncthreads();\nout[t] = s[63 - t];",
            *(Kind.NEVER_WRITTEN, "line 6: thread 63 of block 0 reads s[0], which no thread"),
        ),
        (
            "__shared__ float s[64];\ns[t] = t;\nout[t] = s[t / 2];",
            *(
                Kind.RACE,
                "line 5: thread 1 of block 0 reads s[0] while thread 0 writes it (line 4)",
            ),
        ),
        ("if (t < 40)\n __syncthreads();", Kind.BARRIER_MISSED, "line 4: 40 threads wait"),
        (
            "if (t < 32)\n __syncthreads();\nelse\n __syncthreads();",
            *(
                Kind.BARRIERS_MIXED,
                "line 4: thread 0 waits at this __syncthreads(), thread 32 at the",
            ),
        ),
        (
            "float v = t;\nif (t < 20) v += __shfl_xor_sync(0xffffffffu, v, 1);\nout[t] = v;",
            *(Kind.SHUFFLE_MISSED, "line 4: 20 lanes wait"),
        ),
        ("out[t] = __shfl_sync(0x1u, t, 0);", Kind.SHUFFLE_MASK, "lane 1 shuffles with a mask"),
    ],
)
def test_mistakes_are_named(run, body, kind, told):
    with pytest.raises(Fault) as fault:
        run(body)
    assert fault.value.kind == kind
    assert told in fault.value.finding.found
    assert len(fault.value.finding.says) > 100


def test_a_result_that_is_read_before_it_is_written(tmp_path):
    """`+=` on memory that holds nothing yet. What another block writes in time is no such thing."""
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void k(Output out) {\n  out[threadIdx.x] += 1;\n}\n')
    arrays = {"out": torch.full((32,), torch.nan)}
    with pytest.raises(Fault) as fault:
        Emulated(path, Kernel("k", "O")).run(arrays, Launch((1,), (32,)))
    assert fault.value.kind == Kind.NEVER_WRITTEN
    assert fault.value.finding.found == (
        "line 2: thread 0 of block 0 reads out[0], which nobody has written"
    )
    assert "with `=`" in fault.value.finding.says
    path.write_text(
        'extern "C" __global__ void k(Output out) {\n'
        "  if (blockIdx.x == 0) out[threadIdx.x + 32] = out[threadIdx.x];\n"
        "  else out[threadIdx.x] = 1;\n}\n"
    )
    arrays = {"out": torch.full((64,), torch.nan)}
    with pytest.raises(Fault) as fault:
        Emulated(path, Kernel("k", "O")).run(arrays, Launch((2,), (32,)))
    assert fault.value.kind == Kind.RACE


def test_a_race_between_blocks_and_none_between_launches(run):
    with pytest.raises(Fault) as fault:
        run("if (t == 0) out[0] = blockIdx.x;", Launch((2,), (64,), (1024,)))
    assert "of block 1 writes out[0] while thread 0 of block 0 writes it" in (
        fault.value.finding.found
    )
    _, out = run("atomicAdd(&out[0], 1.0f);", Launch((2,), (64,), (1024,)))
    assert out[0] == 128


def test_warps_are_ordered_by_barriers_and_lanes_by_shuffles(run):
    staged = "__shared__ float s[64];\ns[t] = t;\n%s;\nout[t] = s[t ^ %d];"
    run(staged % ("__syncthreads()", 33))
    run(staged % ("__syncwarp()", 1))
    with pytest.raises(Fault):
        run(staged % ("__syncwarp()", 33))


def test_shared_memory_of_a_block_is_not_the_next_ones(run):
    with pytest.raises(Fault) as fault:
        run(
            "__shared__ float s[64];\nif (blockIdx.x == 0) s[t] = 1;\n"
            "out[64 * blockIdx.x + t] = s[t];",
            Launch((2,), (64,), (1024,)),
        )
    assert (
        "of block 1 reads s[0], which no thread of its block has written"
        in fault.value.finding.found
    )


# ---- the text


def test_lines_keep_their_numbers():
    text = (
        "a\n/* two\nlines */ __shared__ float s[4], t[2][3];\nconst float* p = (const float*)x;\n"
    )
    made = translated(text)
    assert made.count("\n") == text.count("\n")
    assert 'Shared<float, (4)> s("s");' in made.splitlines()[2]
    assert 'Shared<float, (2), (3)> t("t");' in made.splitlines()[2]
    assert "emulator::Pointer<const float> p = emulator::Cast<const float>() ->* x;" in made


def test_shared_memory_without_a_size_is_explained():
    with pytest.raises(Stop) as stop:
        translated("\nextern __shared__ float s[];\n")
    assert stop.value.finding.found.startswith("line 2")


# ---- pictures


def test_a_picture_shows_what_was_touched(run):
    counted, _ = run("if (t < 32)\n out[t] = x[4 * t];")
    reads = next(r for r in counted.requests if not r.writes)
    drawn = access.text(reads)
    assert "line 4 reads x: 128 bytes wanted, 512 fetched (16 sectors), 25% used" in drawn
    assert "█···█··· █···█···" in drawn
    assert max(map(len, drawn.splitlines())) <= 80
    assert access.figure(reads, "x").svg.count("<line") == 32
