"""What a person who clones or installs the package relies on."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import megafuse

ROOT = Path(__file__).resolve().parent.parent


def fenced(markdown: str) -> list[str]:
    """The lines inside ``` blocks."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.M | re.S)
    return [line.strip() for block in blocks for line in block.splitlines()]


def files_in_git() -> list[Path]:
    """Tracked files, and those that the next `git add .` would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_readme_commands_exist():
    lines = fenced((ROOT / "README.md").read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {m[1] for line in lines if (m := re.match(r"make ([\w-]+)", line))}
    assert {"demo", "test"} <= named
    assert named <= targets
    scripts = {m[1] for line in lines if (m := re.match(r"python3? ([\w./-]+\.py)", line))}
    assert not {name for name in scripts if not (ROOT / name).is_file()}


def test_version_is_said_once():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "([^"]+)"', project, re.M)[1]
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert f"project(megafuse VERSION {declared} " in cmake
    try:
        importlib.metadata.version("megafuse")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("megafuse runs from its sources, not installed")
    assert megafuse.__version__ == declared


def test_what_cuda_needs_is_an_extra():
    """A CPU-only machine gets none of it, and `dev` goes with a torch for any CUDA version."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    plain = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    assert not [need for need in plain if re.search("cuda|nvidia", need)]
    assert any(need.startswith("cuda-core") for need in extras["cuda"])
    for name in ("cu12", "cu13", "nvrtc"):
        assert "megafuse[cuda]" in extras[name]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search("^(cuda-bindings|nvidia)", pins, re.M), "these follow torch's CUDA"


def test_wheel_is_pure_python_and_holds_the_kernels(tmp_path):
    for module in ("pip", "hatchling"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"building the wheel needs {module}")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    package = ROOT / "src" / "megafuse"
    expected = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")  # pictures, scripts and styles of pages too
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert any(name.endswith(".h") for name in expected)
    assert "megafuse/py.typed" in held
    assert expected <= held
    strangers = {name for name in held if not name.startswith(("megafuse/", "megafuse-"))}
    assert not strangers


# Absolute paths of somebody's machine, and hosts that packages come from: which index pip asks
# is the user's setting.
PRIVATE = re.compile(
    r"(?<![\w.)}\]-])/(?:home|Users|root|work|mnt|opt)/\w"
    r"|pypi\.org|pythonhosted\.org|download\.pytorch\.org|--(?:extra-)?index-url"
)


def test_no_machine_paths_or_package_hosts():
    found = []
    for path in files_in_git():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if PRIVATE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
