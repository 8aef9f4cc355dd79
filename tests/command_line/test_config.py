"""The configs are strict, documented, and the same in YAML and in Python."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from pydantic import BaseModel, ValidationError

import interp
from experiments.command_line.compose import CONFIGS, compose
from experiments.command_line.keys import default_kinds, groups, keys_of, written
from interp.config.circuits import CheckCircuitConfig
from interp.config.common import Given, RepeatedRandom, Text
from interp.config.effects import (
    AblateHeadsConfig,
    AttributeHeadsConfig,
    Copying,
    KnockOutSinksConfig,
    PatchHeadsConfig,
    SplitEffectsConfig,
    TracePathsConfig,
    WeightVsInfluenceConfig,
)
from interp.config.reruns import ReportConfig, ReproduceConfig
from interp.config.scoring import (
    FindCompositionConfig,
    FindHeadsConfig,
    FindInductionConfig,
    FindPreviousTokenConfig,
    FindSinksConfig,
    ReadAttentionConfig,
    SinkRate,
)
from interp.errors import InterpError
from interp.lesson.config import (
    AttentionByHandConfig,
    AttentionCostConfig,
    CausalMaskConfig,
    EvictCacheConfig,
    FindHypothesesConfig,
    KvCacheSizeConfig,
    ResolvePronounConfig,
    ScoreScalingConfig,
)
from interp.runs import strict_yaml
from interp.scoring.roles import ROLES

EXPERIMENTS: dict[str, type[BaseModel]] = {
    "reproduce": ReproduceConfig,
    "report": ReportConfig,
    "find_sinks": FindSinksConfig,
    "find_previous_token": FindPreviousTokenConfig,
    "find_induction": FindInductionConfig,
    "find_heads": FindHeadsConfig,
    "find_composition": FindCompositionConfig,
    "knock_out_sinks": KnockOutSinksConfig,
    "ablate_heads": AblateHeadsConfig,
    "patch_heads": PatchHeadsConfig,
    "trace_paths": TracePathsConfig,
    "attribute_heads": AttributeHeadsConfig,
    "read_attention": ReadAttentionConfig,
    "weight_vs_influence": WeightVsInfluenceConfig,
    "split_effects": SplitEffectsConfig,
    "check_circuit": CheckCircuitConfig,
    "attention_by_hand": AttentionByHandConfig,
    "kv_cache_size": KvCacheSizeConfig,
    "attention_cost": AttentionCostConfig,
    "causal_mask": CausalMaskConfig,
    "score_scaling": ScoreScalingConfig,
    "evict_cache": EvictCacheConfig,
    "find_hypotheses": FindHypothesesConfig,
    "resolve_pronoun": ResolvePronounConfig,
}
NEEDED: dict[str, dict[str, Any]] = {
    "read_attention": {"prompt": "a b", "layer": 1, "head": 2},
    "reproduce": {"run": "runs/first"},
    "report": {"runs": ("runs/first", "runs/second")},
}


# --- YAML and models agree -----------------------------------------------------------------------


def test_every_experiment_with_a_yaml_is_known_here() -> None:
    shared = {"any_run", "shared", "scoring"}
    assert {path.stem for path in CONFIGS.glob("*.yaml")} - shared >= EXPERIMENTS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_yaml_defaults_are_the_models(name: str) -> None:
    config = EXPERIMENTS[name]
    needed = NEEDED.get(name, {})
    composed = compose(name, config, [f"{key}={written(value)}" for key, value in needed.items()])
    assert composed == config(**needed)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_yaml_lists_every_key(name: str) -> None:
    """compose() would fill a key that the YAML lacks from the model, so look at the YAML alone."""
    from experiments.command_line.compose import _defaults

    config = EXPERIMENTS[name]
    sections = groups(config)
    choices = [{section: kind} for section, models in sections.items() for kind in models]
    for choice in choices or [{}]:
        kinds = default_kinds(config) | choice
        data = _defaults(name, kinds)
        wanted = {
            path
            for path, key in keys_of(config, kinds).items()
            if key.default is not None and path not in sections
        }
        assert _leaves(data) == {p for p in wanted if not p.startswith("sink_rate.")}


def _leaves(data: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in data.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
    return found


def test_every_key_in_yaml_has_a_comment() -> None:
    for path in CONFIGS.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# "), path
        for line in text.splitlines():
            key, colon, _ = line.partition(":")
            if colon and key.isidentifier() and key not in ("defaults", "kind"):
                assert " # " in line, (path, line)


def test_every_field_says_what_it_means() -> None:
    for config in EXPERIMENTS.values():
        for section, models in (groups(config) or {"": {"": None}}).items():
            for kind in models:
                kinds = default_kinds(config) | ({section: kind} if section else {})
                for key in keys_of(config, kinds).values():
                    assert key.description or key.path.endswith(".kind"), key.path


def test_find_heads_looks_for_every_role_of_the_library() -> None:
    """In the YAML that a reader sees, and by default; sink_first_k is a role only with its k."""
    from experiments.command_line.compose import _defaults

    written = _defaults("find_heads", default_kinds(FindHeadsConfig))["roles"]
    assert tuple(written) == tuple(ROLES) == FindHeadsConfig().roles
    assert FindHeadsConfig(roles=["sink_first_k", "mine.py:two_back"]).roles[0] == "sink_first_k"


# --- strict values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"confidence": "0,3"},
        {"confidence": True},
        {"confidence": 1.0},
        {"confidence": float("nan")},
        {"seed": True},
        {"seed": 1.0},
        {"seed": "1"},
        {"seed": -1},
        {"seed": 2**32},
        {"overwrite": "true"},
        {"overwrite": 1},
        {"model": 3},
        {"model": ""},
        {"threads": 0},
        {"device": "gpu"},
        {"bos": "maybe"},
        {"prompts": "text"},
        {"prompts": {"kind": "text", "lenght": 3}},
        {"prompts": {"length": 3}},
        {"sink_rate": 0.3},
        {"sink_rate": {"epsilon": 1.0}},
        {"treshold": 0.3},
        {"roles": ("induction",)},
    ],
    ids=str,
)
def test_wrong_keys_and_types_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FindSinksConfig(**keys)


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        (Text, {"path": "a.txt"}, "path is read with source=file only"),
        (Text, {"source": "file"}, "source=file needs path"),
        (Text, {"source": "dataset"}, "source=dataset needs dataset"),
        (Text, {"dataset": "a/b"}, "dataset is read with source=dataset only"),
        (Text, {"split": "test"}, "split is read with source=dataset only"),
        (Text, {"length": 1}, "greater than or equal to 2"),
        (Given, {"texts": []}, "at least 1 item"),
        (Given, {"texts": ["a", ""]}, "at least 1 character"),
        (RepeatedRandom, {"periods": []}, "at least 1 item"),
        (RepeatedRandom, {"periods": [0]}, "greater than 0"),
        (RepeatedRandom, {"repeats": 1}, "greater than or equal to 2"),
        (FindHeadsConfig, {"roles": []}, "at least 1 item"),
        (FindHeadsConfig, {"roles": ["inductoin"]}, "did you mean induction"),
        (FindHeadsConfig, {"roles": ["induction", "induction"]}, "is there twice"),
        (AttributeHeadsConfig, {"correct_qk": True}, "correct_qk is for site=q and site=k"),
        (AttributeHeadsConfig, {"audit": 0, "n_random": 5}, "read with an audit only"),
        (AttributeHeadsConfig, {"n_random": 2}, "greater than or equal to 3"),
        (TracePathsConfig, {"receivers": ["logits", "k1.0"]}, "logits stands alone"),
        (TracePathsConfig, {"receivers": ["z1.0"]}, "expected logits, or such as q2.5"),
        (TracePathsConfig, {"receivers": []}, "at least 1 item"),
        (PatchHeadsConfig, {"site": "pattern"}, "Input should be 'q', 'k'"),
        (
            AblateHeadsConfig,
            {"metric": "logit_difference"},
            "not for task=copying: expected one of loss",
        ),
        (PatchHeadsConfig, {"metric": "loss"}, "metric=loss is not for task=little_world"),
        (PatchHeadsConfig, {"positions": "places", "task": Copying()}, "names no places"),
        (AblateHeadsConfig, {"n_random": 3}, "n_random is read with together only"),
        (AttributeHeadsConfig, {"metric": "flips"}, "Input should be 'logit_difference'"),
        (
            AttributeHeadsConfig,
            {"metric": "kl", "direction": "noise"},
            "gradient at the clean prompt",
        ),
        (CheckCircuitConfig, {"metric": "kl", "ranking": "attribution"}, "has no gradient"),
        (TracePathsConfig, {"receivers": ["q0.1"]}, "no head comes before layer 0"),
        (TracePathsConfig, {"receivers": ["k1.0", "k01.0"]}, "is there twice"),
        (TracePathsConfig, {"together": True}, "together is for several receivers"),
        (TracePathsConfig, {"together": True, "receivers": ["k1.0"]}, "there is one: k1.0"),
        (
            WeightVsInfluenceConfig,
            {"target": "answer"},
            "not for task=copying: expected one of current",
        ),
        (
            WeightVsInfluenceConfig,
            {"target": "sink_any"},
            "target=sink_any is not for task=copying",
        ),
        (KnockOutSinksConfig, {"prompts": Text(length=15)}, "and a control: expected at least 16"),
        (KnockOutSinksConfig, {"prompts": Text(length=8), "n_random": 0}, "4: expected at least 9"),
        (
            KnockOutSinksConfig,
            {"prompts": Text(length=21), "first_keys": [20], "n_random": 0},
            "of 20: expected at least 22",
        ),
    ],
    ids=str,
)
def test_contradictions_are_refused(
    model: type[BaseModel], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        model(**keys)


def test_heads_are_text_and_never_numbers(tmp_path: Path) -> None:
    """18.10 is not 18.1: on the command line as it is written, in a file in quotes or not at all."""
    for text in ("[18.10,18.1]", "18.10 18.1", "18.10"):
        config = compose("ablate_heads", AblateHeadsConfig, [f"together={text}"])
        assert config.together == text
        file = tmp_path / "my.yaml"
        file.write_text(strict_yaml.dump(config.model_dump(mode="json")), encoding="utf-8")
        assert compose("ablate_heads", AblateHeadsConfig, files=[file]) == config
        for line in (f"together: '{text}'", f"together: {text}"):
            file.write_text(line)
            if line.endswith("18.10 18.1") or "'" in line:
                again = compose("ablate_heads", AblateHeadsConfig, files=[file])
                assert again.together == text
            else:
                with pytest.raises(InterpError, match=r"of a number 18\.10 only 18\.1"):
                    compose("ablate_heads", AblateHeadsConfig, files=[file])
    with pytest.raises(InterpError, match="'x' is no head"):
        compose("ablate_heads", AblateHeadsConfig, ["together=1.0 x"])
    with pytest.raises(ValidationError, match="mean_over is read with ablation=mean only"):
        AblateHeadsConfig(mean_over="token")
    with pytest.raises(ValidationError, match="first_keys holds something twice"):
        KnockOutSinksConfig(first_keys=[1, 1])


def test_one_query_is_named_once() -> None:
    where = {"prompt": "the cat", "layer": 0, "head": 0}
    ReadAttentionConfig(**where, query=3)
    ReadAttentionConfig(**where, query_token=" cat")
    with pytest.raises(ValidationError, match="twice"):
        ReadAttentionConfig(**where, query=3, query_token=" cat")


def test_configs_are_values() -> None:
    config = FindSinksConfig(prompts=Text(length=32), sink_rate=SinkRate())
    assert config == FindSinksConfig(prompts={"kind": "text", "length": 32}, sink_rate={})
    assert len({config, FindSinksConfig(prompts=Text(length=32), sink_rate=SinkRate())}) == 1
    assert RepeatedRandom(periods=[5, 7]) == RepeatedRandom(periods=(5, 7))
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1  # type: ignore[misc]


def test_config_and_package_are_light() -> None:
    heavy = "{'torch', 'transformers', 'pandas'}"
    modules = "interp, interp.config.circuits, interp.config.effects, interp.config.training"
    code = f"import sys, {modules}; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_public_names_are_defined_where_they_are_looked_for() -> None:
    """By ast: importing them all takes seconds."""
    package = Path(interp.__file__).parent
    for name, home in interp._HOME.items():
        tree = ast.parse((package / f"{home.replace('.', '/')}.py").read_text(encoding="utf-8"))
        defined = {getattr(node, "name", None) for node in tree.body}
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
        assert name in defined, (name, home)
    assert set(interp.__all__) == {*interp._HOME, "__version__"}
    modules = {path.stem for path in package.glob("*.py")}
    assert not modules & interp._HOME.keys(), "importing a submodule would hide the name"
    assert set(interp.__all__) <= set(dir(interp))


def test_public_names_are_imported_when_used() -> None:
    assert interp.InterpError is InterpError
    assert interp.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = interp.no_such_name


# --- composing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["on", "off", "tokenizer"])
def test_bos_is_no_boolean_however_it_is_written(tmp_path: Path, written: str) -> None:
    assert compose("find_sinks", FindSinksConfig, [f"bos={written}"]).bos == written
    for text in (f"bos: {written}", f'bos: "{written}"'):
        file = tmp_path / "my.yaml"
        file.write_text(text)
        assert compose("find_sinks", FindSinksConfig, files=[file]).bos == written
        plain_reader = OmegaConf.to_container(OmegaConf.load(file))
        assert isinstance(plain_reader, dict)
        assert FindSinksConfig(**{str(k): v for k, v in plain_reader.items()}).bos == written


def test_command_line_wins_over_files_over_defaults(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("seed: 1\ntop: 1\nprompts:\n  length: 64\n")
    second.write_text("top: 2\nconfidence: 9e-1\nprompts.n_prompts: 3\n")
    config = compose("find_sinks", FindSinksConfig, ["confidence=0.8"], [first, second])
    assert (config.seed, config.top, config.confidence) == (1, 2, 0.8)
    assert config.prompts == Text(length=64, n_prompts=3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["prompts=repeated_random"], RepeatedRandom()),
        (["prompts.periods=[5,7]", "prompts=repeated_random"], RepeatedRandom(periods=(5, 7))),
        (["prompts.kind=given", "prompts.texts=it's, well (fine)!"], ["it's, well (fine)!"]),
        (["prompts=given", "prompts.texts=null"], ["null"]),
        (["prompts=given", "prompts.texts=${oc.env:HOME}"], ["${oc.env:HOME}"]),
        (["prompts=given", 'prompts.texts=["a, b",c d]'], ["a, b", "c d"]),
        (["prompts={kind:given,texts:[a]}"], ["a"]),
    ],
    ids=str,
)
def test_prompts_are_chosen_on_the_command_line(arguments: list[str], expected: Any) -> None:
    config = compose("find_sinks", FindSinksConfig, arguments)
    assert config.prompts == (Given(texts=expected) if isinstance(expected, list) else expected)


def test_text_is_taken_as_it_is_written() -> None:
    arguments = ["model=C:\\my models\\(a), b", "revision=1234567", "out='null'", "threads=null"]
    config = compose("find_sinks", FindSinksConfig, arguments)
    assert config.model == "C:\\my models\\(a), b"
    assert (config.revision, config.out, config.threads) == ("1234567", "null", None)
    quoted = {r"'it\'s'": "it's", '"a, b"': "a, b", "'a' and 'b'": "'a' and 'b'", "'": "'"}
    for text, meant in quoted.items():
        assert compose("find_sinks", FindSinksConfig, [f"model={text}"]).model == meant


def test_a_list_that_may_be_null_can_be_told_so() -> None:
    assert compose("ablate_heads", AblateHeadsConfig, ["together=null"]).together is None


def test_an_optional_section_opens_by_its_keys() -> None:
    def rate(*arguments: str) -> SinkRate | None:
        return compose("find_sinks", FindSinksConfig, arguments).sink_rate

    assert rate() is None
    assert rate("sink_rate={}") == SinkRate(epsilon=0.3, tokens=64)
    assert rate("sink_rate.epsilon=0.2") == SinkRate(epsilon=0.2)
    assert rate("sink_rate.epsilon=0.2", "sink_rate=null") is None


def test_a_later_choice_replaces_the_section_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("prompts:\n  kind: text\n  length: 64\n")
    given = compose("find_sinks", FindSinksConfig, ["prompts=given", "prompts.texts=a"], [file])
    assert given.prompts == Given(texts=("a",))
    same = compose("find_sinks", FindSinksConfig, ["prompts=text"], [file])
    assert same.prompts == Text(length=64)


def test_a_saved_config_composes_to_itself(tmp_path: Path) -> None:
    texts = (
        "NA",
        "null",
        "on",
        "1e5",
        "10:30",
        "${x}",
        " the",
        "a\nb",
        "é",
        "010",
        "~",
        "2020-01-01",
    )
    config = FindSinksConfig(prompts=Given(texts=texts), bos="on", sink_rate=SinkRate())
    file = tmp_path / "config.yaml"
    file.write_text(strict_yaml.dump(config.model_dump(mode="json")), encoding="utf-8")
    assert compose("find_sinks", FindSinksConfig, files=[file]) == config


def test_hydra_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra import initialize_config_dir

    monkeypatch.chdir(tmp_path)
    compose("find_sinks", FindSinksConfig)
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):  # a notebook's own Hydra
        theirs = GlobalHydra.instance().hydra
        compose("find_sinks", FindSinksConfig)
        assert GlobalHydra.instance().hydra is theirs
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_file_and_the_command_line_are_named(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("seed: 1\nprompts:\n  kind: text\n  lenght: 3\n")
    with pytest.raises(InterpError, match=r"my\.yaml, line 4: unknown key 'prompts\.lenght'"):
        compose("find_sinks", FindSinksConfig, files=[file])
    with pytest.raises(
        InterpError, match=r"^command line: unknown key 'sead'; did you mean 'seed'"
    ):
        compose("find_sinks", FindSinksConfig, ["sead=1"])
