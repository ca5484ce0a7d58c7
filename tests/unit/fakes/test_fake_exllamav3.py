"""The fake of ExLlamaV3 takes nothing that the real one does not take."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np
import pytest

from tests.fakes import fake_exllamav3
from tests.fakes.fake_exllamav3 import Cache, CacheLayer_quant, ComboSampler, Config, Generator, Job, Model, Tokenizer
from tests.support.clockwork_folders import make_hf
from worker.clockwork import make_vocabulary

# exllamav3-1.6.5-py3-none-any.whl, read with `ast`, annotations left out; of long ones what comes after is left out.
REAL = {
    "Config.from_directory": "directory, **kwargs",
    "Model.from_config": "config, component='text', **kwargs",
    "Model.load": "self, *args, **kwargs",
    "Model.load_gen": (
        "self, device=None, tp_output_device=None, reserve_per_device=None, use_per_device=None, tensor_p=False, "
        "progressbar=False, max_chunk_size=2048, max_output_size=32, max_output_factor=1, callback=None, "
        "generator=True, tp_dev_limits=None, tp_backend='native', verbose=False, max_batch_size=1, tp_options=None, "
        "autosplit_no_forward=False, draft_model=None"
    ),
    "Cache.__init__": (
        "self, model, max_num_tokens, layer_type=None, max_batch_size=16, max_history=0, recurrent_dtype='half', "
        "**kwargs"
    ),
    "CacheLayer_fp16.__init__": "self, config, attention, cache_id, max_num_tokens",
    "CacheLayer_quant.__init__": "self, config, attention, cache_id, max_num_tokens, k_bits, v_bits, compand_a=0.0",
    "Tokenizer.from_config": "config",
    "ComboSampler.__init__": (
        "self, rep_p=1.0, freq_p=0.0, pres_p=0.0, rep_sustain_range=100000000, rep_decay_range=0, dry_multiplier=0.0, "
        "dry_base=1.75, dry_allowed_length=2, dry_range=0, dry_sequence_breakers=None, temperature=1.0, min_p=0.0, "
        "top_k=0, top_p=1.0, temp_last=False, adaptive_target=1.0, adaptive_decay=0.9, logit_bias=None"
    ),
    "Job.__init__": (
        "self, input_ids, max_new_tokens=None, min_new_tokens=0, max_skips=4, sampler=None, seed=None, "
        "stop_conditions=None, decode_special_tokens=False, return_top_tokens=0, return_logits=False, "
        "return_probs=False, filters=None, token_healing=False, identifier=None, banned_strings=None, "
        "embeddings=None, max_rq_tokens=None, stop_on_loop=None, rq_state=None, **kwargs"
    ),
    "Generator.__init__": (
        "self, model, cache, tokenizer, max_batch_size=256, max_chunk_size=2048, shared_chunk_size=None, "
        "prefill_cooldown=4, max_q_size=8, draft_model=None, draft_cache=None, num_draft_tokens=None"
    ),
    "Generator.enqueue": "self, job",
    "Generator.cancel": "self, job",
    "Generator.iterate": "self",
    "Generator.num_remaining_jobs": "self",
}


def _real(arguments: str) -> dict[str, Any]:
    """Names to defaults; `...` where there is none."""
    function = ast.parse(f"def f({arguments}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [each.arg for each in function.args.args]
    values = [ast.literal_eval(each) for each in function.args.defaults]
    known = dict(zip(names, [...] * (len(names) - len(values)) + values, strict=True))
    return known | {f"*{each.arg}": ... for each in (function.args.vararg, function.args.kwarg) if each}


def _fake(name: str) -> dict[str, Any]:
    of, method = name.split(".")
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        f"*{each.name}" if each.kind in kinds else each.name: ... if each.default is each.empty else each.default
        for each in inspect.signature(getattr(getattr(fake_exllamav3, of), method)).parameters.values()
    }


@pytest.mark.parametrize("name", REAL)
def test_what_it_takes_the_real_one_takes_in_the_same_place(name: str) -> None:
    real, fake = _real(REAL[name]), _fake(name)
    assert fake.items() <= real.items(), "the same names and defaults"
    assert [each for each in real if each in fake] == [*fake], "in the same order"
    assert {each for each, default in real.items() if default is ... and "*" not in each} <= {*fake}


def _loaded(tmp_path: Any, size: int = 512) -> Generator:
    make_hf(tmp_path / "m")
    config = Config.from_directory(str(tmp_path / "m"))
    model = Model.from_config(config)
    cache = Cache(model, max_num_tokens=size)
    model.load()
    return Generator(model, cache, Tokenizer.from_config(config))


def _job(*tokens: int, **fields: Any) -> Job:
    return Job(np.array([tokens]), sampler=ComboSampler(temperature=0), **fields)


def test_it_answers_and_keeps_the_end_token_back(tmp_path: Any) -> None:
    vocabulary, generator = make_vocabulary(), _loaded(tmp_path)
    job = _job(vocabulary.chain[0], stop_conditions=[vocabulary.chain[-1]])
    generator.enqueue(job)
    results = []
    while generator.num_remaining_jobs():
        results += generator.iterate()
    assert [each["stage"] for each in results] == ["started", *["streaming"] * 16]
    told = [token for each in results for token in (each["token_ids"][0].tolist() if "token_ids" in each else ())]
    assert tuple(told) == vocabulary.chain[1:-1]
    expected = ("stop_token", [[vocabulary.chain[-1]]])
    assert (results[-1]["eos_reason"], results[-1]["held"]["token_ids"].tolist()) == expected


def test_it_refuses_what_the_real_one_refuses(tmp_path: Any) -> None:
    generator = _loaded(tmp_path, 256)
    with pytest.raises(AssertionError, match="cannot be enqueued"):
        generator.enqueue(_job(*range(256)))
    model = Model.from_config(Config.from_directory(str(tmp_path / "m")))
    model.load()
    late = Generator(model, Cache(model, 256), generator._tokenizer)
    with pytest.raises(AssertionError, match="never allocated"):
        late.iterate()
    for bits in (1, 9):
        with pytest.raises(AssertionError, match="from 2 to 8 bits"):
            Cache(model, 256, CacheLayer_quant, k_bits=bits, v_bits=8)
    for bad in ({"min_p": 2}, {"min_p": -1}, {"top_p": 2}):
        with pytest.raises(AssertionError):
            ComboSampler(**bad)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="multiple of 256"):
        Cache(model, 300)
