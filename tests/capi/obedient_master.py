"""A master whose prompts are commands, without model or torch: it starts in a tenth of a second and does what tests need.

A prompt's first word is the command:

    say WORDS...     one token a word, then the end
    count N          N tokens "0 ", "1 ", ...; N -1 never ends
    fail             the request fails
    die              the whole process is killed
    exit             the whole process ends with exit code 7 after some last words
    break            the engine loop ends with an error
    full             refused as if the queue were full

A text to embed may begin with one of these, too; any other has the vector (number of words, 1, 2, 2), and fits a query by
a tenth of its number of words.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import EngineDead, InvalidRequest, ModelLoadError, QueueFull, RequestTooLong
from xllm_framework.request import FinishReason, RequestOutput, SamplingParams, SequenceOutput, TokenLogprob
from xllm_framework.request.messages import EngineReady, EngineStats

OnOutput = Callable[[RequestOutput], None]
STEP_S = 0.001
TOKENS_A_STEP = 8


@dataclass
class Job:
    """A prepared, and later a running, request. Token ids are positions."""

    request_id: str
    words: list[str]
    num_tokens: int
    params: SamplingParams
    num_prompt_tokens: int
    command: str
    on_output: OnOutput | None = None
    position: int = 0
    prompt: str = ""


class ObedientPooling:
    """Embeds, and scores as well."""

    def check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is not None and dimensions > 4:
            raise InvalidRequest("dimensions must be from 1 to 4.", "dimensions")

    def prepare(self, prompt: object, *, truncate_to: int | None = None, **options: object) -> object:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], tuple):
            return [self.prepare(document, truncate_to=truncate_to) for _, document in prompt]
        words = (prompt.split() if isinstance(prompt, str) else [str(token) for token in prompt])[:truncate_to]
        if not words:
            raise InvalidRequest("texts must hold at least one token.", "texts")
        command = words[0] if words[0] in ("fail", "count", "die", "break", "full") else "pool"
        number = -1 if command == "count" else 0
        return Job(f"pool-{next(NUMBERS)}", words, number, SamplingParams(), len(words), command)

    def vector(self, output: RequestOutput, dimensions: int | None) -> np.ndarray:
        return output.outputs[0].pooled[:dimensions]

    def scores(self, pairs: object, outputs: list[RequestOutput]) -> list[float]:
        return [output.num_prompt_tokens / 10 for output in outputs]


NUMBERS = itertools.count()


class ObedientMaster:
    """The part of LLMMaster's surface that an engine process uses."""

    backend = "llm"

    def __init__(self, config: XLLMConfig) -> None:
        if config.model.model == "missing":
            raise ModelLoadError("There is no model at missing.")
        if config.model.model == "slow":
            time.sleep(30)
        self.model_name = config.model.model_id or "obedient"
        self.ready = EngineReady(4096, 64, config.kv_cache.block_size, 1000, "python", "cpu", "float32")
        self.config = config
        self.chat_template = None
        self.model_args = SimpleNamespace(model_type="obedient")
        self.pooling = self.scorer = ObedientPooling()
        self._numbers = itertools.count()
        self._running: dict[str, Job] = {}
        self._has_work = threading.Event()
        self._num_tokens = 0
        self._failure: str | None = None
        self._callbacks: list[Callable[[str], None]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def prepare_completion(
        self, prompt: str | list[int], params: SamplingParams, *, add_special_tokens: bool = True, **options: object
    ) -> Job:
        params.check_vocabulary(self.ready.vocab_size)
        text = prompt if isinstance(prompt, str) else f"say ids {' '.join(map(str, prompt))}"
        words = text.split()
        if not words:
            raise InvalidRequest("prompt must hold at least one token.", "prompt")
        if len(words) > self.ready.max_model_len:
            raise RequestTooLong(f"{len(words)} tokens, limit {self.ready.max_model_len}.", "prompt")
        number = int(words[1]) if words[0] == "count" else len(words) - 1
        limit = params.max_tokens
        limited = number if limit is None else limit if number < 0 else min(number, limit)
        return Job(f"request-{next(self._numbers)}", words[1:], limited, params, len(words), words[0])

    def prepare_chat(self, chat: SimpleNamespace, params: SamplingParams, **options: object) -> Job:
        messages = [f"{message['role']}={message.get('content')}" for message in chat.messages]
        tools = [] if chat.tools is None else [f"tools={len(chat.tools)}"]
        return self.prepare_completion(" ".join(["say", *messages, *tools]), params, **options)

    def submit(self, job: Job, on_output: OnOutput) -> None:
        if self._failure is not None:
            raise EngineDead(self._failure)
        if job.command == "full":
            raise QueueFull("Too many requests wait.")
        if job.command == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.command == "exit":
            print("farewell", file=sys.stderr, flush=True)
            os._exit(7)
        job.on_output = on_output
        self._running[job.request_id] = job
        self._has_work.set()

    def cancel(self, request_id: str) -> None:
        job = self._running.pop(request_id, None)
        if job is not None:
            self._emit(job, [SequenceOutput(0, finish_reason=FinishReason.ABORT)], True)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running), num_blocks=64, num_generated_tokens=self._num_tokens, step_time_s=0.5
        )

    def health(self) -> str | None:
        return self._failure

    def on_engine_failure(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def drain(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        return

    def _run(self) -> None:
        while True:
            if not self._running:
                self._has_work.clear()
            if not self._running:
                self._has_work.wait()
            for job in list(self._running.values()):
                self._step(job)
            time.sleep(STEP_S)

    def _step(self, job: Job) -> None:
        if job.command == "fail":
            self._end(job, [], error="The model raised.", kind="request_failed")
        elif job.command == "break":
            self._failure = "The engine loop has ended: broken on request."
            for running in list(self._running.values()):
                self._end(running, [], error=self._failure, kind="engine_dead")
            for callback in self._callbacks:
                callback(self._failure)
        elif job.command == "pool":
            pooled = SequenceOutput(0, finish_reason=FinishReason.STOP)
            pooled.pooled = np.array([len(job.words), 1, 2, 2], np.float32)
            self._end(job, [pooled])
        else:
            for _ in range(TOKENS_A_STEP):
                if self._generate(job):
                    return

    def _generate(self, job: Job) -> bool:
        """Give the job one token; True when it has ended."""
        if job.position == job.num_tokens:
            self._end(job, [SequenceOutput(index, finish_reason=FinishReason.STOP) for index in range(job.params.n)])
            return True
        position = job.position
        job.position += 1
        self._num_tokens += job.params.n
        text = f"{position} " if job.command == "count" else job.words[position] + " "
        logprobs = [TokenLogprob(position, -0.5, [(position, -0.5), (7, -1.5)])] if job.params.logprobs else None
        outputs = [SequenceOutput(index, text, [position], logprobs) for index in range(job.params.n)]
        if job.position == job.params.max_tokens:
            for output in outputs:
                output.finish_reason = FinishReason.LENGTH
            self._end(job, outputs)
            return True
        self._emit(job, outputs, False)
        return False

    def _end(self, job: Job, outputs: list[SequenceOutput], error: str | None = None, kind: str | None = None) -> None:
        if self._running.pop(job.request_id, None) is not None:
            self._emit(job, outputs, True, error, kind)

    @staticmethod
    def _emit(
        job: Job, outputs: list[SequenceOutput], finished: bool, error: str | None = None, kind: str | None = None
    ) -> None:
        assert job.on_output is not None
        output = RequestOutput(job.request_id, outputs, finished, job.num_prompt_tokens, num_cached_tokens=1)
        output.error, output.error_kind = error, kind
        job.on_output(output)
