"""A rollout actor's part in weight updates: drain, update, finish, reset, admit, in this order (R8, R9)."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.weights import engine_side
from openrlhf_ada.weights.engine_side import FROM_DISK, ReceivesWeights
from openrlhf_ada.weights.manifest import Manifest, TensorSpec

pytestmark = pytest.mark.rehearsal

MANIFEST = Manifest((TensorSpec("w", "float32", (2,)),)).to_plain()


class Llm:
    """vLLM as far as weights go. Its prefix cache holds the version of the weights that wrote it."""

    def __init__(
        self,
        *,
        running: int = 0,
        paused: bool = False,
        resets: bool = True,
        caches: bool = True,
        images: bool = False,
    ) -> None:
        self.calls: list[str] = []
        self.weights, self.cached = 0, 0
        self.unused: list[list[str]] = [[]]
        self.resets, self.paused = resets, paused
        self.running = running
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(enable_prefix_caching=caches),
            model_config=SimpleNamespace(is_multimodal_model=images),
        )

    def get_num_unfinished_requests(self) -> int:
        return self.running

    async def is_paused(self) -> bool:
        return self.paused

    async def start_weight_update(self) -> None:
        self.calls.append("start")

    async def update_weights(self, request: Any) -> None:
        assert request.update_info["manifest"] == MANIFEST
        self.calls.append("update")

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[list[int]]:
        self.calls.append(f"{method} {args[0]}" if args else method)
        return self.unused if method == "unused_tensors" else [[7]]

    async def finish_weight_update(self, weight_version: str) -> None:
        self.calls.append("finish")
        self.weights = int(weight_version)

    async def reset_encoder_cache(self) -> None:
        self.calls.append("forget images")

    async def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        if self.resets:
            self.cached = self.weights
        return self.resets


def make_actor(llm: Llm) -> Any:
    actor: Any = ReceivesWeights()
    actor.llm = llm
    actor.open_gate()
    return actor


def is_open(actor: Any) -> bool:
    return actor._admitted.is_set()


async def update(actor: Any, version: int, *, sums: bool = True) -> Any:
    await actor.begin_update()
    found = await actor.receive_update(MANIFEST, sums=sums)
    assert not is_open(actor), "not before they are confirmed"
    await actor.admit_update(version)
    return found


def test_nothing_is_sampled_before_the_first_weights() -> None:
    async def check() -> None:
        llm = Llm()
        actor = make_actor(llm)
        sampling = asyncio.create_task(actor.weights_version())
        await asyncio.sleep(0.01)
        assert not sampling.done()
        assert await update(actor, 5) == [[7]]
        assert await sampling == 5
        assert llm.calls == ["start", "update", "unused_tensors", "received_sums", "finish", "reset"]
        assert llm.cached == 5

    asyncio.run(check())


def test_checksums_are_had_only_where_they_are_asked_for() -> None:
    async def check() -> None:
        llm = Llm(caches=False)
        assert await update(make_actor(llm), 1, sums=False) == []
        assert llm.calls == ["start", "update", "finish"], "and no cache is emptied where there is none"

    asyncio.run(check())


@pytest.mark.parametrize(("unused", "is_admitted"), [([["w"], ["v", "w"]], False), ([["w"], ["v"]], True)])
def test_weights_that_no_worker_uses_are_named(unused: list[list[str]], is_admitted: bool) -> None:
    """A worker may not have an expert that another has."""
    llm = Llm()
    llm.unused = unused
    actor = make_actor(llm)
    if is_admitted:
        asyncio.run(update(actor, 1))
    else:
        with pytest.raises(RuntimeError, match=r"1 of the policy's weights, the first: w\b.*--ada_verify_sync off"):
            asyncio.run(update(actor, 1))
    assert is_open(actor) is is_admitted


def test_a_cache_that_stays_full_keeps_the_gate_closed() -> None:
    """vLLM says so by a False (R9)."""

    async def check() -> None:
        actor = make_actor(Llm(resets=False))
        with pytest.raises(RuntimeError, match="prefix cache"):
            await update(actor, 1)
        assert not is_open(actor)

    asyncio.run(check())


@pytest.mark.parametrize(("running", "forgets"), [(0, True), (2, False)])
def test_images_are_encoded_anew_by_new_weights(running: int, forgets: bool) -> None:
    """vLLM keeps what its image encoder made. A rollout that goes on with the new weights may still need it."""
    llm = Llm(running=running, paused=True, images=True)
    asyncio.run(update(make_actor(llm), 1))
    assert llm.calls[-1] == ("forget images" if forgets else "reset")


def test_running_samples_block_updates_unless_paused() -> None:
    async def check() -> None:
        llm = Llm(running=3)
        actor = make_actor(llm)
        await actor.serve_from_disk()
        with pytest.raises(RuntimeError, match=r"^3 rollouts are on their way"):
            await actor.begin_update()
        assert llm.calls == [] and not is_open(actor)
        await update(make_actor(Llm(running=3, paused=True)), 1)

    asyncio.run(check())


def test_failed_update_closes_the_gate_for_good() -> None:
    async def check() -> None:
        llm = Llm()
        actor = make_actor(llm)
        await update(actor, 1)

        async def fail(request: Any) -> None:
            raise RuntimeError("connection lost")

        llm.update_weights = fail  # type: ignore[method-assign]
        await actor.begin_update()
        with pytest.raises(RuntimeError, match="connection lost"):
            await actor.receive_update(MANIFEST, sums=True)
        assert not is_open(actor)

    asyncio.run(check())


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_fails_with_a_dying_engine_is_not_answered(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """A worker of a tensor-parallel engine has died: vLLM's call fails first, and its core is known to be dead later.
    The actor then ends, so that Ray starts it again. Any other failure is told.
    """
    monkeypatch.setattr(engine_side, "DYING_S", 0.5)

    async def check() -> None:
        llm: Any = Llm()
        llm.errored = False

        async def fail() -> None:
            if dies:
                asyncio.get_running_loop().call_later(0.15, setattr, llm, "errored", True)
            raise RuntimeError("cancelled")

        llm.start_weight_update = fail
        begun = asyncio.create_task(make_actor(llm).begin_update())
        done, _ = await asyncio.wait([begun], timeout=1.5)
        assert bool(done) is not dies
        if done:
            with pytest.raises(RuntimeError, match="cancelled"):
                begun.result()
        begun.cancel()

    asyncio.run(check())


def test_update_may_begin_twice() -> None:
    async def check() -> None:
        llm = Llm()
        actor = make_actor(llm)
        for version in (1, 2):
            await actor.begin_update()
            await update(actor, version, sums=False)
        assert llm.calls == ["start", "update", "finish", "reset"] * 2

    asyncio.run(check())


def test_untrained_engine_serves_weights_from_disk() -> None:
    async def check() -> None:
        actor = make_actor(Llm())
        await actor.serve_from_disk()
        assert await actor.weights_version() == FROM_DISK

    asyncio.run(check())


def test_vllms_processes_unpickle_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF allows it in every engine's process (VLLM_ALLOW_INSECURE_SERIALIZATION)."""
    actor = make_actor(Llm())
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    actor.forbid_pickle()
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in os.environ
    arguments = actor.with_receiver({"model": "m", "worker_extension_cls": "OpenRLHF's"})
    assert arguments["worker_extension_cls"].rpartition(".")[2] == "PolicyWeightsExtension"
