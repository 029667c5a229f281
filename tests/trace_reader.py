"""Reads a Chrome trace by the rules of Perfetto's importer into tables of the same names, so that
SQL can be tried without it. What the importer would drop or mend is an error here."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

Event = dict[str, Any]

TABLES = """
create table process (upid integer primary key, pid int, name text);
create table thread (utid integer primary key, tid int, upid int, name text);
create table thread_track (id integer primary key, utid int);
create table slice (id integer primary key, ts int, dur int, track_id int, category text, name text,
                    depth int, parent_id int, arg_set_id int);
create table flow (slice_out int, slice_in int);
create table counter_track (id integer primary key, name text);
create table counter (ts int, track_id int, value real);
"""


def events_of(text: str) -> list[Event]:
    return json.loads(text, parse_constant=pytest.fail)["traceEvents"]


def nanoseconds(us: float) -> int:
    """Both ways of cutting off that importers have had give this."""
    assert abs(us * 1000 - round(us * 1000)) < 1e-3
    assert int(us * 1000) == round(us * 1000)
    return int(us * 1000)


def tables(events: list[Event]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    threads: dict[tuple[int, int], int] = {}
    tids: set[int] = set()
    counters: dict[str, int] = {}
    stacks: dict[int, list[tuple[int, int, int]]] = {}  # id, start and end of open slices
    leaving: dict[int, int] = {}
    arguments: dict[int, dict[str, Any]] = {}
    db.create_function("extract_arg", 2, lambda number, key: arguments[number].get(key))

    def thread(event: Event) -> int:
        key = event["pid"], event["tid"]
        if key not in threads:
            assert key[1] not in tids, "a row of two processes"
            assert 0 not in key and key[0] != key[1]
            tids.add(key[1])
            threads[key] = len(threads)
            db.execute("insert or ignore into process values (?, ?, null)", (key[0], key[0]))
            db.execute("insert into thread values (?, ?, ?, null)", (threads[key], *key[::-1]))
            db.execute("insert into thread_track values (?, ?)", (threads[key], threads[key]))
        return threads[key]

    def innermost(event: Event) -> int:
        stack = stacks[thread(event)]
        number, start, end = stack[-1]
        assert start <= event["at"] <= end
        return number

    for event in events:
        event["at"] = nanoseconds(event.get("ts", 0.0))
    for event in sorted(events, key=lambda e: e["at"]):  # stable
        track, at = thread(event), event["at"]
        match event["ph"]:
            case "M":
                table, column = event["name"].removesuffix("_name"), event["name"][0] == "t"
                where = ("utid", track) if column else ("upid", event["pid"])
                named = (event["args"]["name"], where[1])
                db.execute(f"update {table} set name = ? where {where[0]} = ?", named)
            case "X":
                stack, dur = stacks.setdefault(track, []), nanoseconds(event["dur"])
                while stack and _over(stack[-1], at, dur):
                    stack.pop()
                assert all(at + dur <= end for _, _, end in stack), "slices overlap"
                number = len(arguments)
                parent = stack[-1][0] if stack else None
                row = (number, at, dur, track, event["cat"], event["name"], len(stack), parent)
                db.execute("insert into slice values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, number))
                arguments[number] = _flat("args", event.get("args", {}))
                stack.append((number, at, at + dur))
            case "s":
                assert event["id"] not in leaving
                leaving[event["id"]] = innermost(event)
            case "f":
                assert event["bp"] == "e"
                ends = leaving.pop(event["id"]), innermost(event)
                db.execute("insert into flow values (?, ?)", ends)
            case "C":
                ((unit, value),) = event["args"].items()
                name = f"{event['name']} {unit}"
                if name not in counters:
                    counters[name] = len(counters)
                    db.execute("insert into counter_track values (?, ?)", (counters[name], name))
                db.execute("insert into counter values (?, ?, ?)", (at, counters[name], value))
            case other:
                pytest.fail(f"an event of kind {other}")
    assert not leaving, "arrows that arrive nowhere"
    return db


def _over(slice_: tuple[int, int, int], at: int, dur: int) -> bool:
    """Whether a slice has ended when another begins; moments in the same nanosecond nest."""
    _, start, end = slice_
    return end < at or (end == at and (start < end or dur > 0))


def _flat(key: str, value: Any) -> dict[str, Any]:
    """What is in objects and lists, by its path."""
    if isinstance(value, dict):
        below = {f"{key}.{name}": part for name, part in value.items()}
    elif isinstance(value, list):
        below = {f"{key}[{i}]": part for i, part in enumerate(value)}
    else:
        return {key: value}
    return {k: v for path, part in below.items() for k, v in _flat(path, part).items()}
