"""A real server of the rec backend: completions, chats, msgpack, catalogues that change under load, and its refusals."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support.rec_models import HISTORIES, random_items, write_catalogue
from support.server_process import ServerProcess
from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.rec import ItemTable

ITEMS = random_items()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue")


@pytest.fixture(scope="module")
def server(folder: Path):
    titled = ItemTable(ITEMS.item_ids, ITEMS.tokens, [f"film {n}" for n in ITEMS.item_ids], ["drama"] * ITEMS.num_items)
    path = write_catalogue(folder, titled, "titled.bin")
    options = ["--backend", "rec", "--item-file", str(path), "--enable-extended-item-info", "--dtype", "float32"]
    options += ["--beam-width", "8", "--enable-output-sku-logprobs", "--device", "cpu"]
    with ServerProcess(*options, model=tiny_checkpoint("qwen3")) as started:
        yield started


def ask(server: ServerProcess, route: str = "/v1/completions", **body: object):
    return server.client.post(route, json=body)


def test_a_completion_recommends_items(server: ServerProcess):
    answer = ask(server, prompt=HISTORIES[0], logprobs=1)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in body["choices"]] == list(range(8))
    scores = [choice["score"] for choice in body["choices"]]
    assert scores == sorted(scores, reverse=True)
    ids = []
    for choice in body["choices"]:
        rows = (ITEMS.tokens == choice["token_ids"]).all(axis=1)
        assert choice["item_ids"] == ITEMS.item_ids[rows].tolist()
        assert choice["document_ids"] == [f"film {n}" for n in choice["item_ids"]]
        assert choice["item_types"] == ["drama"] * len(choice["item_ids"])
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(choice["score"], abs=1e-5)
        ids += choice["item_ids"]
    tensors = {tensor["name"]: tensor for tensor in body["output_tensors"]}
    assert tensors["rec_result"]["data_type"] == "INT64"
    assert np.frombuffer(base64.b64decode(tensors["rec_result"]["contents"]), "<i8").tolist() == ids
    assert tensors["item_did"]["contents"] == [f"film {n}" for n in ids]
    assert tensors["sku_logprobs"]["shape"] == [8, 3]
    assert body["usage"]["completion_tokens"] == 24


def test_several_prompts_and_a_chat(server: ServerProcess):
    body = ask(server, prompt=[HISTORIES[0], HISTORIES[1]], n=2, beam_width=5).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    chat = ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "films"}], n=3)
    assert chat.status_code == 200, chat.text
    assert [choice["message"]["role"] for choice in chat.json()["choices"]] == ["assistant"] * 3
    assert all(choice["item_ids"] for choice in chat.json()["choices"])


def test_msgpack_in_and_out(server: ServerProcess):
    content = msgspec.msgpack.encode({"prompt": HISTORIES[0], "n": 2})
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    answer = server.client.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    body = msgspec.msgpack.decode(answer.content)
    as_json = ask(server, prompt=HISTORIES[0], n=2).json()
    assert [choice["item_ids"] for choice in body["choices"]] == [choice["item_ids"] for choice in as_json["choices"]]
    result = next(tensor for tensor in body["output_tensors"] if tensor["name"] == "rec_result")
    assert np.frombuffer(result["contents"], "<i8").tolist() == [
        item for c in body["choices"] for item in c["item_ids"]
    ]
    assert server.client.post("/v1/completions", content=b"\xc1", headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [1], "beam_width": 513}, "beam_width"),
        ({"prompt": [1], "beam_width": 2, "n": 3}, "num_return_sequences"),
        ({"prompt": [1], "n": 1, "num_return_sequences": 1}, "n"),
        ({"prompt": [1], "max_tokens": 4}, "max_tokens"),
        ({"prompt": [1], "temperature": 0.5}, "temperature"),
        ({"prompt": [1], "stream": True}, "stream"),
        ({"prompt": [9999]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1] * 300}, "prompt"),
        ({}, "prompt"),
        (
            {"prompt": [1], "tensors": [{"name": "x", "data_type": "FP32", "shape": [2], "contents": "AAAA"}]},
            "tensors[0]",
        ),
    ],
)
def test_refusals_name_the_field(server: ServerProcess, body: dict, param: str):
    answer = ask(server, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_the_catalogue_changes_under_load_and_loses_no_request(server: ServerProcess, folder: Path):
    other = random_items(60, codes=5, seed=4)
    path = write_catalogue(folder, other, "other.bin")
    catalogues = [ITEMS, other]
    statuses, versions, wrong = [], set(), []

    def load(worker: int) -> None:
        for n in range(12):
            answer = ask(server, prompt=[*HISTORIES[n % 4], worker, n])
            statuses.append(answer.status_code)
            body = answer.json()
            versions.add(body["catalogue_version"])
            items = catalogues[(body["catalogue_version"] + 1) % 2]
            known = set(items.item_ids.tolist())
            wrong.extend(item for choice in body["choices"] for item in choice["item_ids"] if item not in known)

    threads = [threading.Thread(target=load, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    changed = ask(server, "/catalogue", path=str(path), extended=False)
    assert changed.json() == {"version": 2, "num_items": 60, "num_token_lists": len(np.unique(other.tokens, axis=0))}
    assert ask(server, "/catalogue/rollback").json()["num_items"] == ITEMS.num_items
    for thread in threads:
        thread.join()
    assert statuses == [200] * 72
    assert not wrong
    assert versions <= {1, 2, 3}
    missing = ask(server, "/catalogue", path=str(folder / "missing.bin"))
    assert missing.status_code == 400
    assert "cannot be read" in missing.json()["error"]["message"]


def test_other_routes(server: ServerProcess):
    assert server.client.get("/health").status_code == 200
    assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 256
    assert server.client.post("/v1/messages", json={}).status_code == 404
    assert "/catalogue" in server.client.get("/openapi.json").json()["paths"]
    paused = server.client.post("/pause").json()
    assert paused == {"status": "paused"}
    assert server.client.post("/resume").json() == {"status": "running"}
