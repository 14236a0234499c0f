"""Writes files so that a reader sees the old text or the new one, never half of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from codecs import BOM_UTF8
from collections.abc import Mapping
from errno import EACCES, EISDIR, ENAMETOOLONG, ENOTDIR
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from meshwright.profiles.documents import document_text, shown_path
from meshwright.profiles.errors import FieldError, InvalidProblemError

ANSWER_FILE = "answer.json"
REPORT_FILE = "report.html"
FOLDER_OPTION = "--save-dir"


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name next to ``path``, then rename it."""
    write_whole(path, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write as ``write_text`` does; folders around it are made."""
    if not path.name:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_all({path: data})


def replace_texts(texts: Mapping[Path, str], *, backup: str = "") -> None:
    """Replace the texts of existing files, all or none; modes, byte-order marks and links stay.

    Args:
        texts: the new text of each file.
        backup: the ending of a copy of each old file, such as ``.bak``; empty: none is kept.

    Raises:
        OSError: a file, or its folder, can't be written; no file was changed.
    """
    staged: dict[Path, Path] = {}
    try:
        for given, text in texts.items():
            path = given.resolve()
            if not os.access(path, os.W_OK):
                raise PermissionError(EACCES, os.strerror(EACCES), str(given))
            mark = BOM_UTF8 if path.read_bytes().startswith(BOM_UTF8) else b""
            staged[path] = temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(mark + text.encode())
            shutil.copymode(path, temporary)
        for path in staged if backup else ():
            shutil.copy2(path, path.with_name(path.name + backup))
        for path, temporary in staged.items():
            temporary.replace(path)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def save_folder(
    folder: Path,
    files: Mapping[str, str],
    *,
    plan_id: str,
    force: bool,
    problem: Mapping[str, Any] | None = None,
    option: str = FOLDER_OPTION,
) -> None:
    """Write ``files`` into ``folder``: all or nothing; if the process is killed, the old ones stay.

    In a folder that is there already, files change one after the other once all are written; the answer,
    which names their plan, is removed first and written last.

    Raises:
        InvalidProblemError: as ``check_folder``.
    """
    check_folder(folder, force=force, plan_id=plan_id, problem=problem, option=option)
    try:
        if folder.exists():
            _fill(folder, files)
            return
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            _fill(temporary, files)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as fault:
        raise _unwritable(folder, fault, option) from None


def zipped(files: Mapping[str, str]) -> bytes:
    """Return the files as one zip; the same files give the same bytes. Scripts are executable."""
    body = BytesIO()
    with ZipFile(body, "w", ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = ZIP_DEFLATED
            entry.external_attr = (0o755 if text.startswith("#!") else 0o644) << 16
            archive.writestr(entry, text)
    return body.getvalue()


def save_export(
    folder: Path, files: Mapping[str, str], answer: Mapping[str, Any], *, plan_id: str, force: bool
) -> list[str]:
    """Write launch files and the answer that holds their plan alone; the names of what was written.

    Raises:
        InvalidProblemError: as ``save_folder``.
    """
    whole = {**files, ANSWER_FILE: document_text(answer)}
    save_folder(folder, whole, plan_id=plan_id, force=force)
    return list(whole)


def check_folder(
    folder: Path,
    *,
    force: bool,
    plan_id: str | None = None,
    problem: Mapping[str, Any] | None = None,
    option: str = FOLDER_OPTION,
) -> None:
    """Refuse a folder that cannot be written, or that holds something else.

    An answer to the same ``problem``, as a request states it, may be written over: that is known before the
    search, which plan the folder will hold is not. Errors name the ``option`` that gave the folder.

    Raises:
        InvalidProblemError: the folder holds no plan, or neither ``plan_id`` nor an answer to ``problem``;
            or it cannot be read or written.
    """
    try:
        _require_writable(folder)
        fits = force or _may_hold(folder, plan_id, problem)
    except OSError as fault:
        raise _unwritable(folder, fault, option) from None
    if not fits:
        what = "other files" if plan_id is None else "files of another plan"
        message = f"{shown_path(folder)} contains {what}. Choose another folder, or add --force"
        raise InvalidProblemError([FieldError(pointer=option, message=message, tip="--force")])


def check_written(path: Path, option: str, *, is_folder: bool) -> None:
    """Refuse a file or a folder that a command could not write, before it begins its work.

    Raises:
        InvalidProblemError: it cannot be written; names the ``option``.
    """
    if not is_folder and path.exists() and not (path.is_file() or path.is_dir()):
        return  # /dev/stdout
    try:
        if not is_folder and path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        _require_writable(path if is_folder else path.absolute().parent)
    except OSError as fault:
        raise _unwritable(path, fault, option) from None


def _require_writable(folder: Path) -> None:
    """Raise OSError unless the folder, or the nearest one around it that exists, can be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
    with TemporaryDirectory(prefix=".meshwright-", dir=nearest):  # asked: root may write where none can
        pass


def _write_all(files: Mapping[Path, str | bytes]) -> None:
    """Write every file under a temporary name, then rename them; the answer's last."""
    staged: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            staged[path] = temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(data)
            if data.startswith(b"#!"):
                temporary.chmod(0o755)
        if any(path.is_dir() for path in files):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        *others, last = sorted(files, key=lambda path: path.name == ANSWER_FILE)
        if others:
            last.unlink(missing_ok=True)
        for path in (*others, last):
            staged[path].replace(path)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder; a name with a slash goes into a subfolder."""
    paths = {folder / name: text for name, text in files.items()}
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    _write_all(paths)


def _may_hold(folder: Path, plan_id: str | None, problem: Mapping[str, Any] | None) -> bool:
    """Return whether the folder is new, empty, or holds that plan already, or an answer to that problem."""
    if not folder.exists() or not any(folder.iterdir()):
        return True
    try:
        answer = json.loads((folder / ANSWER_FILE).read_text(encoding="utf-8"))
        plans = answer["plans"]
        first = plans[0]["plan_id"] if plans else ""  # an infeasible answer holds none
        same = problem is not None and answer.get("problem") == json.loads(json.dumps(problem))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return same or first in ("", plan_id) or (plan_id is None and problem is None)


def _unwritable(folder: Path, fault: OSError, option: str) -> InvalidProblemError:
    reason, name = fault.strerror or "cannot be written", folder.name
    message = f"{shown_path(folder)}: {reason}"
    is_short = fault.errno != ENAMETOOLONG
    tip = f"{option} {shlex.quote(name)}" if name and is_short and not Path(name).exists() else ""
    return InvalidProblemError([FieldError(pointer=option, message=message, tip=tip)])
