"""The tutorial's lines, typed by hand: right ones pass, wrong ones are explained."""

from __future__ import annotations

import pytest
import torch

from megafuse.learn.ladder import launch
from megafuse.learn.tutorial import blanks, typed
from megafuse.learn.tutorial.screen import Screen
from megafuse.learn.tutorial.tour import Tour
from megafuse.runtime import cpp

pytestmark = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
BLANKS = {b.file: b for b in (*blanks.POINTWISE, *blanks.REDUCTION, blanks.PRODUCT)}

# What people type, and what they are told.
WRONG = {
    "gelu_scale/1_naive": [
        ("const long long first = thread * 32;", "each is kStretch long"),
        ("const long long first = thread;", "the stretches overlap"),
        ("const long long first = blockIdx.x * kStretch;", "the whole grid already"),
        ("const long long first = thread * kStretch + 1;", "one after the other"),
    ],
    "gelu_scale/2_coalesced": [
        ("for (long long i = 0; i < n; i += threads)", "Thread t takes floats t, t + threads"),
        ("for (long long i = thread; i < n; ++i)", "A step of 1"),
        ("for (long long i = thread; i <= n; i += threads)", "one float too many"),
        ("for (long long i = thread * 8; i < thread * 8 + 8 && i < n; ++i)", "A step of 1"),
    ],
    "gelu_scale/3_wide": [
        ("float4 v = *reinterpret_cast<const float4*>(x + i);", "x + i is float i, not group i"),
        ("float4 v = reinterpret_cast<const float4*>(x)[4 * i];", "counts in groups already"),
        ("float v = x[i];", "A float is 4 bytes"),
    ],
    "gelu_scale/4_fused": [
        ("v.x = functor(v.x) * factor;", "The functor has the factor already"),
        ("v.x = v.x;", "becomes functor of itself"),
        ("v.y = functor(v.x);", "one of four floats"),
    ],
    "layer_norm/1_naive": [
        ("for (long long c = 0; c <= cols; ++c) sum += in[c];", "the next row"),
        ("for (long long c = 1; c < cols; ++c) sum += in[c];", "from 0 to cols - 1"),
        ("for (long long c = 0; c < cols; ++c) sum = in[c];", "all floats of the row"),
    ],
    "layer_norm/2_coalesced": [
        ("for (long long c = 0; c < cols; ++c) sum += in[c];", "256 times too large"),
        ("for (long long c = threadIdx.x; c < cols; ++c) sum += in[c];", "A step of 1"),
        ("for (long long c = threadIdx.x; c < cols; c += 32) sum += in[c];", "by one thread"),
    ],
    "layer_norm/3_warp": [
        ("mine = __shfl_xor_sync(0xffffffffu, mine, away);", "it must add to it"),
        ("mine += __shfl_down_sync(0xffffffffu, mine, away);", "all lanes need it"),
        ("if (away > 4) mine += __shfl_xor_sync(0xffffffffu, mine, away);", "the sum of all 32"),
    ],
    "layer_norm/4_row_kept": [
        ("kept[k] = x[row * COLS + c];", "The last columns do not exist"),
        ("kept[k] = c < COLS ? x[c] : 0;", "row * COLS + c"),
        ("kept[k] = c < COLS ? x[row + c] : 0;", "row * COLS + c"),
    ],
    "layer_norm/5_wide": [
        ("kept[k] = reinterpret_cast<const Floats*>(x + row * COLS)[c];", "counts in fours"),
        ("kept[k] = *reinterpret_cast<const Floats*>(x + c);", "row * COLS + c"),
        ("kept[k] = *reinterpret_cast<const Floats*>(x + row * COLS + c + 1);", "multiple of 16"),
    ],
    "linear_relu/2_tiled": [
        ("sum = mf::fma(xs[k][down], ws[k][across], sum);", "k is the column in both"),
        ("sum = xs[down][k] * ws[across][k];", "It must add to the sum"),
        ("sum = mf::fma(xs[across][k], ws[down][k], sum);", "xs[down][k] and ws[across][k]"),
    ],
}


@pytest.fixture(autouse=True, scope="module")
def compiled_hastily():
    """Each kernel runs once, on a few floats."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)


@pytest.mark.slow
@pytest.mark.parametrize("file", BLANKS)
def test_the_line_itself_passes(file):
    finding = typed.tried(BLANKS[file], BLANKS[file].line)
    assert finding.ok, finding


@pytest.mark.slow
@pytest.mark.parametrize("file", BLANKS)
def test_three_wrong_lines_are_explained(file):
    assert len(WRONG[file]) >= 3
    for line, says in WRONG[file]:
        finding = typed.tried(BLANKS[file], line)
        assert finding.ok is False, line
        assert says in f"{finding.found} {finding.says}", (line, finding)


@pytest.mark.slow
def test_what_does_not_compile_is_shown_in_the_readers_words():
    finding = typed.tried(BLANKS["gelu_scale/3_wide"], "float4 v = x[i];")
    assert finding.found.startswith("line 10: ")
    assert "float4" in finding.found
    assert "emulator" not in finding.found
    assert finding.says.strip() == "float4 v = x[i];"
    kept = typed.tried(BLANKS["layer_norm/4_row_kept"], "kept[k] = c < COLS ? y[c] : 0;")
    assert kept.says.strip() == "kept[k] = c < COLS ? y[c] : 0;"


def test_every_line_is_in_its_source_and_fits():
    for blank in BLANKS.values():
        assert blank.line in launch.source(blank.file, "cuda")
        assert len(blank.line) <= 76
        assert any("____" in line for line in typed._around(blank))


def test_another_right_way_passes():
    finding = typed.tried(
        BLANKS["layer_norm/3_warp"], "mine = mine + __shfl_xor_sync(~0u, mine, away)"
    )
    assert finding.ok, finding


@pytest.mark.parametrize("file", ["layer_norm/3_warp", blanks.PRODUCT.file])
def test_after_torch_has_started_its_threads(file):
    """They are not there in the process that tries the line, and torch would wait for them."""
    for _ in range(3):
        torch.randn(2_000_000).exp().sum()
        torch.randn(512, 512) @ torch.randn(512, 512)
    assert typed.tried(BLANKS[file], BLANKS[file].line).ok


@pytest.mark.parametrize("line", ["for (;;) {}", "*(volatile int*)8 = 1;"])
def test_what_hangs_or_crashes_does_no_harm(line, monkeypatch):
    monkeypatch.setattr(typed, "_LIMIT", 3.0)
    assert typed.tried(BLANKS["gelu_scale/1_naive"], line).ok is False


@pytest.fixture
def typing(monkeypatch):
    """A terminal at which these lines are typed."""

    def at(*lines: str) -> Tour:
        waiting = list(lines)
        terminal = {"isatty": lambda self: True, "close": lambda self: None}
        monkeypatch.setattr("sys.stdin", type("Terminal", (), terminal)())
        monkeypatch.setattr("builtins.input", lambda prompt: waiting.pop(0))
        return Tour(Screen(pause=True), "cpu", quick=True)

    return at


def test_a_reader_who_types(typing, capsys):
    blank = BLANKS["gelu_scale/2_coalesced"]
    wrong = "for (long long i = thread; i < n; ++i)"
    typed.fill_in(typing("?", wrong, "?", wrong, "?", blank.line), [blank], "gelu_scale")
    said = " ".join(capsys.readouterr().out.split())
    assert "________" in said
    assert "Thread t takes floats t, t + threads" in said
    assert said.count("Not yet") == 2  # three tries: to ask is none
    assert "A step of 1" in said
    assert "Right." in said
    assert "128 fetched (4 sectors), 100% used" in said


def test_a_reader_who_wants_it_filled_in(typing, capsys):
    blank = BLANKS["gelu_scale/2_coalesced"]
    typed.fill_in(typing(""), [blank], "gelu_scale")
    assert f"It is:\n\n  {blank.line}" in capsys.readouterr().out


def test_without_a_reader_nothing_is_asked(capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", None)
    typed.fill_in(Tour(Screen(pause=False), "cpu", quick=True), blanks.POINTWISE[:1], "gelu_scale")
    out = capsys.readouterr().out
    assert blanks.POINTWISE[0].line in out
    assert max(map(len, out.splitlines())) <= 80
