"""What a folder holds after a restart, however the last owner ended."""

import os
import sqlite3
from collections.abc import Callable, Mapping

from flm.core.sizes import MIB
from flm.prefix.disk.draft import frame_bytes
from flm.prefix.disk.folder import Folder
from flm.prefix.disk.frames import RowsFormat
from flm.prefix.disk.index import Change, EntryRow, Index, SegmentRow
from flm.prefix.disk.tree import Entry, Segment, Tree
from flm.prefix.trie import TOKEN_BYTES


def open_folder(
    folder: Folder, form: RowsFormat, warn: Callable[[str], None]
) -> tuple[Index, Tree]:
    """Rows of the index whose files are not whole go, and so do files without a row.

    A damaged index takes all with it. Raises OSError, sqlite3.OperationalError.
    """
    try:
        return _open(folder, form)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        lost = sum(folder.files().values())
        warn(
            f"Prefix cache: the index of {folder.path} is damaged ({error}); starting anew, "
            f"{lost / MIB:.0f} MiB are lost"
        )
        folder.empty()
        return _open(folder, form)


def _open(folder: Folder, form: RowsFormat) -> tuple[Index, Tree]:
    index = Index(folder.path)
    try:
        return index, _load(folder, index, form)
    except BaseException:
        index.close()
        raise


def _load(folder: Folder, index: Index, form: RowsFormat) -> Tree:
    tree = Tree(form.bytes, form.window)
    sizes = folder.files()
    for segment_row in index.segments():
        _add_segment(tree, segment_row, sizes, form)
    for entry_row in index.entries():
        _add_entry(tree, entry_row, sizes, form)
    change = Change()
    for segment in sorted(tree.segments.values(), key=lambda each: -each.number):
        if segment.number in tree.segments:  # the youngest first, so that none is looked at twice
            change.segments += tree.prune(segment)[1]
    for root in list(tree.roots.values()):
        tree.prune(root)
    segments, entries = index.numbers()
    change.segments_gone = sorted(segments - set(tree.segments))
    change.entries_gone = sorted(entries - set(tree.entries))
    if change.segments_gone or change.entries_gone or change.segments:
        index.apply(change)
    for name in sizes.keys() - files_of(tree).keys():
        (folder.path / name).unlink()
    for name, size in files_of(tree).items():
        if sizes[name] > size:  # stopped between the index and the file
            os.truncate(folder.path / name, size)
    return tree


def files_of(tree: Tree) -> dict[str, int]:
    """What must lie there: sizes by name."""
    files = {
        f"{segment.number}.rows": tree.rows_bytes(segment.end - segment.start)
        for segment in tree.segments.values()
    }
    for entry in tree.entries.values():
        files[f"{entry.number}.state"] = entry.state_bytes
        files[f"{entry.number}.logits"] = entry.logits_bytes
    return {name: size for name, size in files.items() if size or name.endswith(".rows")}


def _add_segment(tree: Tree, row: SegmentRow, sizes: Mapping[str, int], form: RowsFormat) -> None:
    parent = tree.segments.get(row.parent) if row.parent else tree.root(row.domain)
    if parent is None or parent.domain != row.domain:
        return
    segment = Segment(row.number, row.domain, parent, row.start, row.end, row.tokens)
    hangs = parent.start < row.start <= parent.end if row.parent else row.start == 0
    whole = len(row.tokens) == (row.end - row.start) * TOKEN_BYTES > 0
    there = sizes.get(f"{row.number}.rows", -1) >= form.bytes(row.end - row.start)
    if hangs and whole and there and segment.key not in parent.children:
        tree.add_segment(segment)


def _add_entry(tree: Tree, row: EntryRow, sizes: Mapping[str, int], form: RowsFormat) -> None:
    segment = tree.segments.get(row.segment)
    there = (
        row.state_bytes == frame_bytes(form.layout.state_bytes)
        and sizes.get(f"{row.number}.state", 0) == row.state_bytes
        and (not row.logits_bytes or sizes.get(f"{row.number}.logits") == row.logits_bytes)
    )
    if segment and there and segment.start < row.offset <= segment.end:
        entry = Entry(row.number, segment, row.offset, row.kind, row.used_at)
        entry.state_bytes, entry.logits_bytes = row.state_bytes, row.logits_bytes
        if row.offset not in segment.entries:
            tree.add_entry(entry)
