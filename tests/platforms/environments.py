"""Environments of other Pythons, Javas and Sparks, each made by uv from the wheel in dist/ and the package index.

A Python or Java that this machine lacks comes from a root of Debian, which `mmdebstrap` makes once in the user's cache;
commands then run in that root, with the folder of the test at the same path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sediment.segment_io.compiled.kernel_folder import IN_TREE
from tests.platforms.platforms import CONSTRAINTS, LOWEST, Platform
from tests.project.distributions import ROOT, bare_environment

LIMIT_SECONDS = 1800
UV = str(Path(sys.executable).with_name("uv"))
SUITE = "forky"
_PACKAGES = "python3,python3-venv,openjdk-21-jre-headless,openjdk-25-jre-headless,libatomic1"
_MIRROR = "http://deb.debian.org/debian"
_OF_HOST = ("/proc", "/dev", "/etc/resolv.conf", "/etc/ssl/certs")
_JAVA = re.compile(r'version "(?:1\.)?([0-9]+)')
_IN_ROOT = """
root=$1 places=$2; shift 2
IFS=:
for place in $places; do
    if [ -d "$place" ]; then mkdir -p "$root$place"; else mkdir -p "$root${place%/*}"; touch "$root$place"; fi
    mount --rbind "$place" "$root$place" || exit 125
done
exec chroot "$root" "$@"
"""


class MissingError(Exception):
    """This machine has no part of a platform and cannot bring it; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where commands of a platform run: here, or in a root of Debian; `prefix` are the words before each command."""

    python: str
    java_home: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment with Sediment, the home of a new user beside it, and where kernels are cached."""

    folder: Path
    home: Path
    machine: Machine
    kernels: str

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def variables(self) -> dict[str, str]:
        own = bare_environment(self.home)
        path = os.pathsep.join((str(self.folder / "bin"), f"{self.machine.java_home}/bin", own["PATH"]))
        own |= {"JAVA_HOME": self.machine.java_home, "PATH": path}
        # No background process outlives a command.
        return {**own, "SEDIMENT_CLASS_ARCHIVE": "off", "SEDIMENT_KERNEL_CACHE": self.kernels}

    def install(self, *arguments: object) -> None:
        """Install packages, with the arguments of `uv pip install`.

        Raises:
            MissingError: they cannot be had here.
        """
        done = _uv(self, "pip", "install", "--python", self.program("python"), *arguments)
        assert "No solution found" not in done.stderr, done.stderr
        if done.returncode != 0:
            raise MissingError(f"the packages cannot be installed: {' '.join(done.stderr.split()[:60])}")

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment.

        Raises:
            AssertionError: it failed.
        """
        words = [*self.machine.prefix, self.program(str(command[0])), *map(str, command[1:])]
        done = subprocess.run(
            words,
            env=self.variables(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def versions(self) -> dict[str, str]:
        code = "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"
        python, spark = self.run("python", "-c", code).stdout.split()
        java = subprocess.run(
            [*self.machine.prefix, f"{self.machine.java_home}/bin/java", "-version"],
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r'version "([0-9.]+)', java.stderr)
        assert found is not None, java.stderr
        return {"Python": python, "Java": found[1], "Spark": spark}


# ---------------------------------------------------------------------------------------------------------- the machine
def find_machine(platform: Platform, folders: Sequence[Path] = ()) -> Machine:
    """Return where `platform` can run; commands there also see `folders`.

    Raises:
        MissingError: neither this machine nor Debian has its Python and its Java.
    """
    python, java = _python(platform.python), _java(platform.java)
    if python is not None and java is not None:
        return Machine(python, java)
    root = debian_root()
    python = f"/usr/bin/python{platform.python}"
    java = f"/usr/lib/jvm/java-{platform.java}-openjdk-amd64"
    for place, what in ((python, f"Python {platform.python}"), (java, f"Java {platform.java}")):
        if not os.path.lexists(f"{root}{place}"):
            raise MissingError(f"neither this machine nor Debian {SUITE} has {what}")
    cache = Path(os.environ.get("UV_CACHE_DIR") or platformdirs.user_cache_path("uv"))
    cache.mkdir(parents=True, exist_ok=True)
    places = (*_OF_HOST, ROOT, Path(sys.prefix), cache, *folders)
    prefix = ("unshare", "--mount", "sh", "-c", _IN_ROOT, "sh", str(root), ":".join(map(str, places)))
    return Machine(python, java, prefix)


def _python(release: str) -> str | None:
    candidates = [f"python{release}", *map(str, Path.home().glob(f".pyenv/versions/{release}.*/bin/python{release}"))]
    for candidate in candidates:
        place = shutil.which(candidate)
        if place is None:
            continue
        code = "import sys, venv; print(f'{sys.version_info[0]}.{sys.version_info[1]}', sys.executable)"
        done = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.split()[0] == release:
            return done.stdout.split()[1]
    return None


def _java(release: int) -> str | None:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    for home in homes:
        program = home / "bin" / "java"
        if program.exists():
            said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
            found = _JAVA.search(said)
            if found is not None and int(found[1]) == release:
                return str(home)
    return None


def debian_root() -> Path:
    """Return a root of Debian with its Python and its Javas.

    Raises:
        MissingError: the root cannot be made here.
    """
    return _make_root(f"debian-{SUITE}", "--variant=minbase", f"--include={_PACKAGES}")


def _make_root(name: str, *options: str) -> Path:
    """Make a root of Debian in the user's cache, once."""
    root = platformdirs.user_cache_path("sediment") / name
    if root.exists():
        return root
    if os.geteuid() != 0:
        raise MissingError("only root can run commands in another root")
    if shutil.which("mmdebstrap") is None:
        raise MissingError("mmdebstrap is not installed")
    new = root.with_name(f"{name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    # A mirror that is a snapshot has lists whose time is over; their signature is checked all the same.  The mounts of
    # mmdebstrap end with it.
    command = ["unshare", "--mount", "mmdebstrap", '--aptopt=Acquire::Check-Valid-Until "false"', *options]
    done = subprocess.run([*command, SUITE, str(new), _MIRROR], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingError(f"mmdebstrap failed: {' '.join(done.stderr.split()[-20:])}")
    new.rename(root)
    return root


def emulated_python() -> tuple[str, list[str]]:
    """Return the release of an aarch64 Python, and the words that run it on this machine; it can start no process.

    Raises:
        MissingError: the emulator or the Python cannot be had here.
    """
    emulator = _make_root(f"qemu-{SUITE}", "--variant=extract", "--include=qemu-user")
    options = ("--variant=extract", "--architectures=arm64", "--include=python3,libstdc++6")
    root = _make_root(f"debian-{SUITE}-arm64", *options)
    if not (root / "lib").exists():  # a script of Debian makes this link, and none was run
        (root / "lib").symlink_to("usr/lib")
    programs = [*emulator.glob("usr/bin/qemu-aarch64-static"), *emulator.glob("usr/bin/qemu-aarch64")]
    pythons = sorted(root.glob("usr/bin/python3.[0-9][0-9]"))
    if not programs or not pythons:
        raise MissingError(f"Debian {SUITE} has no emulator of aarch64 or no Python for it")
    return pythons[-1].name.removeprefix("python"), [str(programs[0]), "-L", str(root), str(pythons[-1])]


# ------------------------------------------------------------------------------------------------------ the environment
def make_environment(platform: Platform, work: Path, kernels: str, *, folder: Path | None = None) -> Environment:
    """Make an environment in `work`.

    Raises:
        MissingError: its Python, its Java or its packages cannot be had here.
    """
    folders = [work] if kernels == IN_TREE else [work, Path(kernels)]
    home = work / "home"
    home.mkdir(parents=True)
    environment = Environment(folder or work / "environment", home, find_machine(platform, folders), kernels)
    done = _uv(environment, "venv", "--python", environment.machine.python, environment.folder)
    assert done.returncode == 0, done.stderr
    environment.install(*_dependencies(platform, work))
    environment.install("--no-deps", wheel())
    return environment


def _dependencies(platform: Platform, work: Path) -> list[object]:
    """Return the arguments of an installation of what pyproject.toml names, with this release of Spark."""
    spark = platform.spark if platform.spark.count(".") == 2 else f"{platform.spark}.*"
    pins = work / "pins.txt"
    pins.write_text(f"pyspark=={spark}\n")
    if platform.has_data_sources:
        arguments: list[object] = ["-r", ROOT / "pyproject.toml", "--extra", "spark"]
    else:  # as on a cluster, which has a Spark of its own
        arguments = ["-r", ROOT / "pyproject.toml", "-r", pins]
    if platform.packages == CONSTRAINTS:
        return [*arguments, "-c", ROOT / "constraints.txt"]
    return [*arguments, "-c", pins, "--resolution", "lowest-direct" if platform.packages == LOWEST else "highest"]


def _uv(environment: Environment, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [*environment.machine.prefix, UV, *map(str, arguments)]
    return subprocess.run(words, cwd=environment.home, capture_output=True, text=True, check=False)


def wheel() -> Path:
    (found,) = (ROOT / "dist").glob("kafka_sediment-*.whl")
    return found
