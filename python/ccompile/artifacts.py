"""save_cache_artifacts and load_cache_artifacts: what this process has compiled, as bytes for another machine.

    b"ccompile artifacts 1\\n" | SHA-256 of the rest | bytes of the head, 8 bytes | head, JSON | keys and images

Artifacts hold machine code, so load only what you have saved yourself, as with a pickle. Bytes are added to the cache
only if the checksum and the head are right; a kernel is run only after its own checksum and its ELF structure have been
checked."""

import hashlib
import json
from typing import Any, NamedTuple

import torch

from . import _core

_MAGIC, _VERSION = b"ccompile artifacts ", b"1\n"
_DIGEST, _LENGTH = 32, 8


class CacheInfo(NamedTuple):
    """How many files of each kind artifacts hold."""

    kernels: int  # machine code of fused kernels
    verdicts: int  # checks of oneDNN's primitives
    others: int  # CUDA programs and their tuning


def _info(kinds: list[str]) -> CacheInfo:
    kernels, verdicts = kinds.count("kernel"), kinds.count("verdict")
    return CacheInfo(kernels, verdicts, len(kinds) - kernels - verdicts)


def _made_for() -> dict[str, str]:
    from . import __version__

    return {"ccompile": __version__, "torch": torch.__version__, "CPU": _core.machine()}


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """The kernels and verdicts that this process has compiled or read from the cache, for load_cache_artifacts on a
    machine with the same CPU and versions. None: there are none (nothing was compiled, or CCOMPILE_CACHE_DIR is
    empty). Recordings are not part of it: they belong to the objects of a process."""
    files = _core.cached_files()
    if not files:
        return None
    head = {"made for": _made_for(), "files": [(kind, len(key), len(image)) for kind, key, image in files]}
    text = json.dumps(head).encode()
    body = len(text).to_bytes(_LENGTH, "little") + text + b"".join(key + image for _, key, image in files)
    artifacts = _MAGIC + _VERSION + hashlib.sha256(body).digest() + body
    return artifacts, _info([kind for kind, _, _ in files])


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Adds what save_cache_artifacts returned (its bytes) to this machine's cache, before the first compiled call.

    Raises TypeError for anything but bytes; ValueError, and adds nothing, if the bytes are damaged, of another
    version of ccompile or torch, or of another CPU; RuntimeError if there is no cache to add to."""
    if not isinstance(serialized_artifacts, bytes):
        raise TypeError(
            "load_cache_artifacts takes the bytes that save_cache_artifacts returned first, not "
            f"{type(serialized_artifacts).__name__}: {serialized_artifacts!r:.100}"
        )
    files = _parse(serialized_artifacts)
    for kind, key, image in files:
        if not _core.add_cached_file(kind, key, image):
            raise RuntimeError(f"a {kind} can't be added to the cache of compiled kernels: see CCOMPILE_CACHE_DIR")
    return _info([kind for kind, _, _ in files])


def _parse(artifacts: bytes) -> list[tuple[str, bytes, bytes]]:
    if not artifacts.startswith(_MAGIC):
        raise ValueError("these are not artifacts of ccompile's save_cache_artifacts")
    if not artifacts.startswith(_VERSION, len(_MAGIC)):
        raise ValueError("these artifacts have another format: save them with this version of ccompile")
    at = len(_MAGIC) + len(_VERSION)
    digest, body = artifacts[at : at + _DIGEST], artifacts[at + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("these artifacts are damaged: their checksum is wrong")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    made_for, sizes = _head(body[_LENGTH:end])
    for what, ours in _made_for().items():
        if made_for.get(what) != ours:
            raise ValueError(f"these artifacts are for another {what}: {made_for.get(what)}, not {ours}")
    if end + sum(n_key + n_image for _, n_key, n_image in sizes) != len(body):
        raise ValueError("these artifacts are damaged: their head does not fit")
    files = []
    for kind, n_key, n_image in sizes:
        files.append((kind, body[end : end + n_key], body[end + n_key : end + n_key + n_image]))
        end += n_key + n_image
    return files


def _head(text: bytes) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    """What the artifacts are made for; kind, bytes of the key and bytes of the image of each file."""
    try:
        head = json.loads(text)
        sizes = [(str(kind), int(n_key), int(n_image)) for kind, n_key, n_image in head["files"]]
        if any(n_key < 1 or n_image < 1 for _, n_key, n_image in sizes):
            raise ValueError("a file without a key or an image")
        return dict(head["made for"]), sizes
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"these artifacts are damaged: their head is no head ({error})") from None
