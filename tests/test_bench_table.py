"""megafuse.bench.table: 80 columns, whatever the numbers, and no claim that they do not carry."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import bench_results as made
import pytest

from megafuse.bench import table
from megafuse.bench.result import Entry, Result, Row, Span, Speedup

ON_CPU = {"cold": 1.0, "warm": 0.5}
ON_CUDA = {"cold": 1.0, "warm": 0.5, "host": 2.0, "graph": 1.1}
LONG = "RuntimeError: " + "no kernel image is available for execution on the device, " * 8
OPS = ("scale_bias_sigmoid", "quantize_int8", "gelu_scale", "swiglu")


def row(op: str = "gelu_scale", rivals: int = 2, clocks: dict[str, float] | None = None) -> Row:
    names = ("eager", "compile", "compile-max", "compile-graphs", "liger", "mine")[:rivals]
    found = made.row(
        op,
        1 << 24,
        seconds=123.4e-6,
        rivals=dict(zip(names, (25.04, 1.01, 0.5, 123.4, 2.0, 3.0), strict=False)) | {"copy": 0.9},
        clocks=clocks or ON_CUDA,
    )
    found.entries[-1].yardstick = True
    return found


def many(rivals: int = 2) -> Result:
    return made.result([row(op, rivals) for op in OPS])


def failing(found: Row, name: str, error: str) -> Row:
    """This contender's result was wrong."""
    at = next(i for i, e in enumerate(found.entries) if e.name == name)
    found.entries[at] = Entry(name, found.entries[at].about, error=error)
    found.speedups.pop(name, None)
    return found


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


# ---- 80 columns


@pytest.mark.parametrize("rivals", range(7))
def test_many_rows_fit(rivals):
    text = str(many(rivals))
    assert widest(text) <= 80
    for op in OPS:
        assert op in text
    rows = [line for line in text.splitlines() if "123 µs" in line]
    assert len(rows) == len(OPS)
    assert len({len(line) for line in rows} - {80}) <= 2
    assert text.count("262144×64") == len(OPS), "a shape, not a count of elements"


@pytest.mark.parametrize("clocks", [ON_CPU, ON_CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("rivals", range(7))
def test_few_rows_fit(clocks, rivals):
    result = made.result([row(op, rivals, clocks) for op in OPS[:3]])
    text = str(result)
    assert widest(text) <= 80
    assert all(clock in text for clock in clocks)


@pytest.mark.parametrize("n", [1, 4])
def test_extreme_numbers_fit(n):
    """Spreads of a thousand percent, seconds, ratios of ten thousand, primes of elements."""
    found = row(rivals=3)
    found.elements, found.shape = 1_234_567_891, [1_234_567_891]
    for entry in found.entries:
        entry.times = {c: Span(999.6, 1.0, 20_000.0, 12) for c in ON_CUDA}
        entry.roof_share = 9.99
    for by_clock in found.speedups.values():
        by_clock["cold"] = Speedup(12_345.6, 1.0, 99_999.0, 12, "ambiguous")
    found.op = "an_op_with_a_name_that_is_longer_than_any_of_ours"
    text = str(made.result([found] * n))
    assert widest(text) <= 80
    assert "≈12346×" in text
    assert "1000 s" in text


@pytest.mark.parametrize("n", [1, 4])
def test_long_texts_fit(n):
    found = failing(failing(row(rivals=3), "compile", LONG), "eager", "x" * 300)
    found.warnings = [LONG]
    found.entries[0].missing = {"graph": LONG}
    result = made.result([found] * n, gpu="")
    result.machine |= {
        "device": "cpu",
        "cpu": "AMD EPYC 9654 96-Core Processor with a name that goes on for long @ 2.40 GHz",
        "load": 3.5,
        "cores": 4,
    }
    result.versions["torch"] = "2.13.0a0+git" + "0" * 40
    result.changed = True
    text = str(result)
    assert widest(text) <= 80
    squeezed = " ".join(text.split())
    assert LONG.strip() in squeezed
    assert "AMD EPYC 9654 96-Core Processor" in squeezed
    assert "with changes" in squeezed


def test_columns_line_up():
    text = table.details(row(rivals=3))
    header, rule = text[1], text[2]
    assert set(rule) == {"─"}
    assert len(rule) == len(header)
    for line in text[3:7]:
        assert len(line) == len(header), "a contender with everything fills its line"


# ---- what it says


def test_few_rows_show_every_contender():
    text = str(made.result([row(rivals=3)]))
    for name in ("fused", "eager", "compile", "copy"):
        assert line_of(text, name)
    assert "25.0×±4%" in line_of(text, "eager")
    assert "gelu_scale, forward, float32, 262144×64" in text
    assert "123 µs ±2%" in line_of(text, "fused")
    assert "×" not in line_of(text, "fused")
    assert "1.2e-05" in line_of(text, "fused")


def test_many_rows_are_a_line_each():
    text = str(many())
    assert [len(re.findall(rf"^{op} ", text, re.M)) for op in OPS] == [1] * 4
    assert "25.0×±4%" in line_of(text, "swiglu")
    assert "copy" not in text, "a yardstick is no rival"
    assert "median time, cold cache" in " ".join(text.split())


def test_ambiguous_is_marked():
    """1.01 ± 4 % is; 25 ± 4 % is not."""
    for text in (str(made.result([row()])), str(many())):
        assert "≈1.01×" in text
        assert "≈25.0×" not in text


def test_a_failed_contender_shows_its_error_and_no_time():
    result = made.result([failing(row(), "eager", "wrong result: 3 of 9 elements")])
    line = line_of(str(result), "eager")
    assert "wrong result: 3 of 9 elements" in line
    assert not re.search(r"\d (s|ms|µs|ns)\b|×", line)
    several = made.result([failing(row(op), "eager", "wrong result: 3 of 9") for op in OPS])
    lines = str(several).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("swiglu"))
    assert "wrong" in lines[at]
    assert "25.0×" not in lines[at]
    assert "  eager: wrong result: 3 of 9" in lines[at + 1 :]


def test_a_failed_subject_shows_its_error():
    found = [failing(row(op), "fused", "wrong dtype") for op in OPS]
    for each in found:
        each.speedups = {}
    assert "fused: wrong dtype" in str(made.result(found))
    assert "wrong dtype" in line_of(str(made.result(found[:1])), "fused")


def test_modes_have_a_title_each():
    rows = [made.row(op, mode=mode) for mode in ("forward", "forward+backward") for op in OPS[:2]]
    lines = str(made.result(rows)).splitlines()
    assert lines.count("forward:") == 1
    assert lines.count("forward+backward:") == 1


def test_a_busy_machine_is_told():
    result = many()
    result.machine |= {"device": "cpu", "load": 1.9, "cores": 2}
    assert "Other programs were running (1.9 of 2 cores)" in str(result)
    for quiet in ({"load": 0.4}, {"load": None}, {"device": "cuda"}):
        result.machine |= {"load": 1.9, "device": "cpu"} | quiet
        assert "Other programs" not in str(result)


def test_a_row_without_any_time():
    found = row()
    for name in ("fused", "eager", "compile", "copy"):
        failing(found, name, "broken")
    assert str(made.result([found])).count("broken") == 4


def test_no_rows():
    assert "torch 2.11.0" in str(made.result([]))


def test_what_is_unknown_is_left_out():
    """A function of the user's: nothing is known of its bytes, nor are its results accurate."""
    found = row(clocks=ON_CPU)
    found.bytes_least = found.flops = found.roof = None
    for entry in found.entries:
        entry.roof_share = entry.launches = entry.accuracy = None
    text = str(made.result([found]))
    assert "None" not in text
    assert "least to move" not in text


# ---- layers: elements alone do not tell rows apart


LAYERS = (
    ("linear_gelu", [32, 512, 768], [3072], {"approximate": "tanh"}),
    ("linear_gelu", [32, 512, 768], [3072], {"approximate": "none"}),
    ("transformer_block", [32, 512, 768], [3072, 768], {"act": "gelu_tanh", "heads": 12}),
    ("layer_norm", [65536, 1024], [], {}),
    ("layer_norm", [1024, 65536], [], {}),
)


def layers(rivals: int) -> Result:
    made_rows = []
    for op, shape, widths, choices in LAYERS:
        found = row(op, rivals)
        found.shape, found.widths, found.choices, found.floor = shape, widths, choices, 73e-6
        made_rows.append(found)
    return made.result(made_rows)


@pytest.mark.parametrize("rivals", range(7))
def test_layers_fit(rivals):
    text = str(layers(rivals))
    assert widest(text) <= 80
    lines = text.splitlines()
    for op in ("linear_gelu", "transformer_block", "layer_norm"):
        assert lines.count(op) == 1, "each op has one title"
    for label in ("32×512×768→3072 tanh", "32×512×768→3072 approximate=none", "1024×65536"):
        assert len([line for line in lines if line.startswith(f"  {label}")]) == 1
    assert "32×512×768→3072→768 gelu_tanh heads=12" in text
    assert len([line for line in lines if "123 µs" in line]) == len(LAYERS)


def test_a_long_name_is_not_said_twice():
    rows = [layers(3).rows[2] for _ in range(4)]
    for each, dtype in zip(rows[1:], ("bfloat16", "float16", "float64"), strict=True):
        each.dtype = dtype
    text = str(made.result(rows))
    assert text.count("32×512×768→3072→768 gelu_tanh heads=12") == 1
    assert text.count("123 µs") == 4


def test_columns_of_layers_line_up():
    lines = str(layers(3)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("size"))
    end = lines[at].index("eager") + len("eager")
    assert len(lines[at + 1]) == len(lines[at])
    for line in lines[at:]:
        if "fp32" in line:
            assert line[:end].endswith("×±4%")


def test_a_title_comes_again_in_another_mode():
    rows = layers(1).rows
    later = [made.row("linear_gelu", mode="forward+backward", widths=[8]) for _ in range(2)]
    lines = str(made.result([*rows[:2], *later])).splitlines()
    assert lines.count("linear_gelu") == 2
    assert lines.index("forward+backward:") + 1 in [
        i for i, line in enumerate(lines) if line == "linear_gelu"
    ]


def test_shapes_are_printed_whatever_their_size():
    """10007×31013 was 3.1e+08."""
    rows = [made.row(op, shape=[10007, 31013], elements=10007 * 31013) for op in OPS]
    for text in (str(made.result(rows)), str(made.result(rows[:1]))):
        assert "10007×31013" in text
        assert "e+08" not in text
        assert widest(text) <= 80


def test_an_op_is_a_title_where_a_line_has_no_room_for_it():
    assert table.Summary(layers(1).rows).titled
    assert not table.Summary([made.row(op) for op in OPS]).titled
    assert table.Summary([row(op, 6) for op in OPS]).titled


def test_one_row_tells_its_label_and_floor():
    text = str(made.result(layers(2).rows[2:3]))
    assert "transformer_block, forward, float32, 32×512×768→3072→768 gelu_tanh heads=12" in text
    assert "floor: 73.0 µs" in text
    assert "floor" not in str(made.result([row()]))


def test_a_notebook_tells_the_label():
    assert "32×512×768→3072 tanh" in layers(1)._repr_html_()


# ---- a notebook


class Cells(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_html_shows_the_rows_and_escapes():
    found = failing(row("<script>alert(1)</script>"), "compile", "<b>1 < 2</b> & more")
    found.entries[1].name = "<lambda>"
    found.speedups["<lambda>"] = found.speedups.pop("eager")
    result = made.result([found], gpu="<img src=x>")
    page = Cells()
    page.feed(result._repr_html_())
    assert not {"script", "b", "lambda", "img"} & set(page.tags)
    text = " ".join(page.texts)
    assert "<script>alert(1)</script>, forward, float32" in text
    assert "<b>1 < 2</b> & more" in text
    assert "<lambda>" in text
    assert "25.0×±4%" in text
    assert page.tags.count("table") == 1


def test_html_says_what_is_ambiguous():
    page = made.result([row()])._repr_html_()
    assert page.count("(ambiguous)") == 1


# ---- numbers for people


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 ps"),
        (5e-10, "500 ps"),
        (999.4e-9, "999 ns"),
        (999.6e-9, "1.00 µs"),
        (3.5249e-6, "3.52 µs"),
        (9.996e-6, "10.0 µs"),
        (99.96e-6, "100 µs"),
        (128e-6, "128 µs"),
        (999.6e-6, "1.00 ms"),
        (1.24e-3, "1.24 ms"),
        (2.0, "2.00 s"),
        (75.0, "75.0 s"),
    ],
)
def test_seconds(value, text):
    assert table.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.50×"), (1.0, "1.00×"), (9.999, "10.0×"), (25.04, "25.0×"), (123.4, "123×")],
)
def test_times(value, text):
    assert table.times(value) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1 K"),
        (1024, "1 Ki"),
        (10_007, "10007"),
        (500_000, "500 K"),
        (1 << 20, "1 Mi"),
        (10**6, "1 M"),
        (16 * 10**6, "16 M"),
        (64 * 10**6, "64 M"),
        (16 << 20, "16 Mi"),
        (50 * 10**6, "50 M"),
        (20 << 10, "20 Ki"),
    ],
)
def test_count(n, text):
    assert table.count(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (8192, "8.19 kB"),
        (999_700, "1.00 MB"),
        (134_217_728, "134 MB"),
        (2 * 10**9, "2.00 GB"),
    ],
)
def test_size_of(n, text):
    assert table.size_of(n) == text


def test_share():
    assert table.share(None) == ""
    assert table.share(0.934) == "93%"
