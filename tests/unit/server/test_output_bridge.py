"""The bridge delivers every output once, in order, and wakes the loop far less often than it delivers."""

from __future__ import annotations

import asyncio
import threading

from xllm_framework.request import RequestOutput
from xllm_server.api_service.output_bridge import OutputBridge, OutputQueue


def output(number: int) -> RequestOutput:
    return RequestOutput(f"r{number}", [], False, number)


def test_every_output_arrives_once_and_in_order() -> None:
    async def run() -> None:
        bridge, queues = OutputBridge(asyncio.get_running_loop()), [OutputQueue() for _ in range(8)]

        def produce() -> None:
            for step in range(500):
                for queue in queues:
                    bridge.post(queue, (0, output(step)))

        async def consume(queue: OutputQueue) -> list[int]:
            seen: list[int] = []
            while len(seen) < 500:
                seen += [item.num_prompt_tokens for _, item in await queue.get()]
            return seen

        thread = threading.Thread(target=produce)
        thread.start()
        for seen in await asyncio.gather(*(consume(queue) for queue in queues)):
            assert seen == list(range(500))
        thread.join()

    asyncio.run(run())


def test_one_wake_up_delivers_a_whole_step() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        bridge, queues = OutputBridge(loop), [OutputQueue() for _ in range(100)]
        readers = [asyncio.create_task(queue.get()) for queue in queues]
        await asyncio.sleep(0)
        num_wake_ups = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(*arguments: object) -> object:
            nonlocal num_wake_ups
            num_wake_ups += 1
            return call_soon_threadsafe(*arguments)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        for queue in queues:
            bridge.post(queue, (0, output(1)))
        assert [len(items) for items in await asyncio.gather(*readers)] == [1] * 100
        assert num_wake_ups == 1

    asyncio.run(run())


def test_a_closed_queue_takes_and_gives_nothing() -> None:
    async def run() -> None:
        bridge, queue = OutputBridge(asyncio.get_running_loop()), OutputQueue()
        reader = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.close()
        assert await reader == []
        bridge.post(queue, (0, output(1)))
        await asyncio.sleep(0.01)
        assert await queue.get() == []

    asyncio.run(run())


def test_outputs_after_the_loop_are_dropped() -> None:
    async def make() -> OutputBridge:
        return OutputBridge(asyncio.get_running_loop())

    bridge = asyncio.run(make())
    for _ in range(3):
        bridge.post(OutputQueue(), (0, output(1)))
