"""Pictures of text: they fit 80 columns and show what the numbers say."""

from __future__ import annotations

import re

import pytest

from megafuse.learn.figures import Point
from megafuse.learn.ladder import LADDERS
from megafuse.learn.pictures import roofline, rung, timeline
from megafuse.learn.tutorial import blanks, typed
from megafuse.runtime import cpp

RUNGS = [
    Point("naive", 0.75, 2e9),
    Point("coalesced", 0.75, 6e9),
    Point("fused", 1.5, 12e9),
    Point("a name that is far too long for any table", 1.5, 6e9),
]


def test_roofline_shows_each_rung_and_the_way_there():
    lines = roofline.text(14e9, 3e11, RUNGS)
    assert max(map(len, lines)) <= 80
    plot = [line.partition("│")[2] for line in lines if "│" in line]
    rows = {n: i for i, row in enumerate(plot) for n in "134" if n in row}
    columns = {n: row.index(n) for row in plot for n in "134" if n in row}
    assert rows["3"] < rows["4"] < rows["1"]  # faster is up
    assert columns["1"] < columns["3"] == columns["4"]  # fewer bytes are to the right
    assert "∘" in "".join(plot)
    told = lines[-4:]
    assert told[0].split() == ["1", "naive", "0.75", "2", "G", "19%"]
    assert told[1].endswith("57%  ↑ 3×")
    assert told[2].endswith("57%  ↑ 2× → 2×")
    assert told[3].endswith("29%  ↓ 2×")


def test_roofline_of_points_beyond_its_roof():
    lines = roofline.text(1e9, 1e10, [Point("cached", 0.1, 1e12), Point("slow", 1e5, 1.0)])
    assert max(map(len, lines)) <= 80
    drawn = "".join(line for line in lines if "│" in line)
    assert "1" in drawn
    assert "2" in drawn


# ---- rungs


FILES = [
    each.file or rung.shipped(name)
    for name in ("gelu_scale", "layer_norm", "linear_relu")
    for each in LADDERS[name].rungs
]


@pytest.mark.parametrize("file", FILES)
def test_every_rung_is_drawn(file):
    lines = rung.text(file).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[-2:]] == ["reused", "waits"]
    assert "reused" in rung.figure(file, "title").svg


def test_every_rung_has_its_accesses_drawn_too():
    drawn = {b.file for b in (*blanks.POINTWISE, *blanks.REDUCTION, blanks.PRODUCT)}
    drawn.add(blanks.NAIVE_PRODUCT.file)
    assert drawn == {file for file in FILES if not file.endswith("shipped")}


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("file", ["layer_norm/2_coalesced", "layer_norm/3_warp"])
def test_the_barriers_that_are_drawn_are_those_that_are_counted(file):
    (blank,) = [b for b in blanks.REDUCTION if b.file == file]
    warps = blank.launch.grid[0] * blank.launch.block[0] // 32
    each = typed.run(blank, blank.arrays(), blank.line).total("barriers") / warps
    said = re.search(r"a barrier, (\d+) for each row", rung.text(file))
    assert each == (int(said[1]) if said else 0)
    assert rung.text(file).splitlines()[0].count("▪") == each


# ---- launches


WAYS = {"separate": ["gelu", "<mul>"], "fused": ["gelu_scale"]}


def test_a_box_for_each_launch():
    shown = timeline.text(WAYS)
    assert shown.splitlines()[0].split() == ["separate", "gelu▕<mul>▕", "2", "launches"]
    drawn = timeline.figure("Launches", "", WAYS).svg
    assert drawn.count('class="kernel"') == drawn.count('class="trip"') == 3
    assert "&lt;mul&gt;" in drawn
    assert "2 launches" in drawn
    assert "1 launch<" in drawn
