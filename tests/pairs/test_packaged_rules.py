"""Check the packaged rules for real names from Ollama's library and GGUF repositories."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest

from specd.pairs.rule_files import RuleFilePaths, RuleFiles, packaged_file
from specd.pairs.rules import Rule, is_file, matches, n_literal_letters
from specd.store.name import parse

RULES = RuleFiles(RuleFilePaths())
PACKAGED = RULES.rules.packaged

#: Each name with the pattern that wins; "" if no rule matches.
TABLE = """
llama3.3:70b                                              llama3.3:70b*
llama3.3:70b-instruct-q4_K_M                              llama3.3:70b*
LLAMA3.3:70B                                              llama3.3:70b*
llama3.3:latest                                           llama3.3:latest
hf.co/bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M        */*llama-3.3-70b*
hf.co/unsloth/Llama-3.3-70B-Instruct-GGUF:UD-Q4_K_XL      */*llama-3.3-70b*
huggingface.co/lmstudio-community/Llama-3.3-70B-Instruct-GGUF:Q4_K_M  */*llama-3.3-70b*
hf.co/mradermacher/Llama-3.3-70B-Instruct-abliterated-i1-GGUF:IQ4_XS  */*llama-3.3-70b*
hf.co/bartowski/nvidia_Llama-3_3-Nemotron-Super-49B-v1-GGUF:Q4_K_M
llama3.1:70b-instruct-q3_K_M                              llama3.1:70b*
llama3.1:405b                                             llama3.1:405b*
hf.co/bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_L   */*llama-3.1-70b*
nemotron:latest                                           nemotron:latest
nemotron:70b-instruct-q4_K_M                              nemotron:70b*
hf.co/bartowski/Llama-3.1-Nemotron-70B-Instruct-HF-GGUF:Q4_K_M  */*llama-3.1-nemotron-70b*
hf.co/bartowski/nvidia_Llama-3.1-Nemotron-Nano-8B-v1-GGUF:Q4_K_M
nemotron-mini:4b
llama3.1:8b                                               llama3.1:8b*
llama3.1:latest                                           llama3.1:latest
llama3.1:8b-instruct-q8_0                                 llama3.1:8b*
hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M    */*llama-3.1-8b*
hf.co/NousResearch/Hermes-3-Llama-3.1-8B-GGUF:Q4_K_M      */*llama-3.1-8b*
llama3.1-claude:latest
llama3:70b                                                llama3:70b*
llama3:8b                                                 llama3:8b*
llama3:latest                                             llama3:latest
hf.co/bartowski/Meta-Llama-3-70B-Instruct-GGUF:Q4_K_M     */*llama-3-70b*
llama2:70b-chat-q4_K_M                                    llama2:70b*
llama2:7b
hf.co/TheBloke/Llama-2-70B-Chat-GGUF:Q4_K_M               */*llama-2-70b*
llama3.2:1b                                               *:1b*
llama3.2:3b-instruct-q8_0                                 *:3b*
llama3.2:latest                                           llama3.2:latest
hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0           */*-1b-*
hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M         */*-3b-*
llama3.2-vision:11b
llama3.2-vision:90b
llama4:scout                                              llama4:*
llama4:16x17b                                             llama4:*
llama4:latest                                             llama4:*
hf.co/unsloth/Llama-4-Scout-17B-16E-Instruct-GGUF:Q2_K_XL */*llama-4-scout*
qwen3:32b                                                 qwen3:32b*
qwen3:32b-q8_0                                            qwen3:32b*
hf.co/Qwen/Qwen3-32B-GGUF:Q4_K_M                          */*qwen3-32b*
hf.co/bartowski/Qwen_Qwen3-32B-GGUF:Q4_K_M                */*qwen3-32b*
qwen3:14b                                                 qwen3:14b*
hf.co/unsloth/Qwen3-14B-GGUF:UD-Q4_K_XL                   */*qwen3-14b*
modelscope.cn/Qwen/Qwen3-14B-GGUF:Q4_K_M                  */*qwen3-14b*
qwen3:8b                                                  qwen3:8b*
qwen3:latest                                              qwen3:latest
qwen3:4b-instruct-2507-q4_K_M                             qwen3:4b*
hf.co/unsloth/Qwen3-4B-Thinking-2507-GGUF:Q4_K_M          */*qwen3-4b*
hf.co/mradermacher/Josiefied-Qwen3-8B-abliterated-v1-GGUF:Q4_K_M  */*qwen3-8b*
qwen3:1.7b                                                *:1.?b*
qwen3:0.6b                                                *:0.?b*
hf.co/unsloth/Qwen3-0.6B-GGUF:Q8_0                        */*-0.?b-*
qwen3-vl:8b                                               qwen3-vl:8b*
qwen3-vl:2b                                               *:2b*
hf.co/Qwen/Qwen3-VL-8B-Instruct-GGUF:Q4_K_M               */*qwen3-vl-8b*
qwen3-embedding:8b
hf.co/Qwen/Qwen3-Embedding-8B-GGUF:Q8_0
qwen3:30b                                                 qwen3:30b*
qwen3:30b-a3b-instruct-2507-q4_K_M                        qwen3:30b*
hf.co/unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M     */*qwen3-30b-a3b*
qwen3-coder:30b                                           qwen3-coder:30b*
qwen3-coder:latest                                        qwen3-coder:latest
hf.co/unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M    */*qwen3-coder-30b-a3b*
qwen3-coder:480b                                          qwen3-coder:480b*
qwen3:235b-a22b-instruct-2507-q4_K_M                      qwen3:235b*
hf.co/unsloth/Qwen3-235B-A22B-GGUF:Q2_K                   */*qwen3-235b-a22b*
qwen3-vl:30b-a3b-instruct                                 qwen3-vl:30b*
qwen3-next:80b                                            qwen3-next:*
qwen3.5:27b                                               qwen3.5:27b*
hf.co/unsloth/Qwen3.5-27B-GGUF:Q4_K_M                     */*qwen3.5-27b*
qwen3.5:9b-q8_0                                           qwen3.5:9b*
qwen3.5:0.8b                                              *:0.?b*
qwen3.5:35b-a3b                                           qwen3.5:35b*
hf.co/unsloth/Qwen3.5-122B-A10B-GGUF:Q4_K_M
qwen3.6:27b                                               qwen3.6:27b*
hf.co/unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL             */*qwen3.6-35b-a3b*
qwen2.5-coder:32b                                         qwen2.5-coder:32b*
qwen2.5-coder:32b-instruct-q4_K_M                         qwen2.5-coder:32b*
hf.co/Qwen/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M         */*qwen2.5-coder-32b*
qwen2.5-coder:14b                                         qwen2.5-coder:14b*
qwen2.5-coder:latest                                      qwen2.5-coder:latest
hf.co/bartowski/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M     */*qwen2.5-coder-7b*
qwen2.5-coder:3b                                          *:3b*
qwen2.5-coder:0.5b                                        *:0.?b*
hf.co/bartowski/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q8_0     */*-1.?b-*
qwen2.5:72b                                               qwen2.5:72b*
qwen2.5:32b-instruct                                      qwen2.5:32b*
qwen2.5:14b                                               qwen2.5:14b*
qwen2.5:latest                                            qwen2.5:latest
hf.co/bartowski/Qwen2.5-72B-Instruct-GGUF:Q4_K_M          */*qwen2.5-72b*
hf.co/bartowski/Qwen2.5-7B-Instruct-1M-GGUF:Q4_K_M        */*qwen2.5-7b*
hf.co/bartowski/Qwen2.5-Math-7B-Instruct-GGUF:Q4_K_M
qwen2.5vl:7b
hf.co/unsloth/Qwen2.5-VL-7B-Instruct-GGUF:Q4_K_M
qwq:32b                                                   qwq:*
hf.co/bartowski/Qwen_QwQ-32B-GGUF:Q4_K_M                  */*qwq-32b*
deepseek-r1:32b                                           deepseek-r1:32b*
deepseek-r1:14b-qwen-distill-q4_K_M                       deepseek-r1:14b*
deepseek-r1:7b                                            deepseek-r1:7b*
deepseek-r1:8b                                            deepseek-r1:8b*
deepseek-r1:8b-0528-qwen3-q4_K_M                          deepseek-r1:8b*
deepseek-r1:latest                                        deepseek-r1:latest
deepseek-r1:8b-llama-distill-q4_K_M                       deepseek-r1:8b-llama-distill*
deepseek-r1:70b                                           deepseek-r1:70b*
deepseek-r1:1.5b                                          *:1.?b*
deepseek-r1:671b                                          deepseek-r1:671b*
hf.co/unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF:Q4_K_M       */*deepseek-r1-0528-qwen3-8b*
hf.co/bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF:Q4_K_M  */*deepseek-r1-distill-qwen-32b*
hf.co/unsloth/DeepSeek-R1-Distill-Llama-70B-GGUF:Q4_K_M   */*deepseek-r1-distill-llama-70b*
hf.co/unsloth/DeepSeek-R1-Distill-Llama-8B-GGUF:Q4_K_M    */*deepseek-r1-distill-llama-8b*
hf.co/unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q8_0     */*-1.?b-*
hf.co/unsloth/DeepSeek-R1-0528-GGUF:UD-Q3_K_XL            */*deepseek-r1-0528-gguf*
hf.co/unsloth/DeepSeek-R1-GGUF:UD-IQ1_S                   */*deepseek-r1-gguf*
deepseek-v3:671b                                          deepseek-v3:*
deepseek-v3.1:671b                                        deepseek-v3.1:*
deepseek-v2:16b                                           deepseek-v2:16b*
deepseek-v2:236b
deepseek-coder-v2:latest                                  deepseek-coder-v2:latest
deepseek-coder:33b                                        deepseek-coder:33b*
hf.co/bartowski/DeepSeek-Coder-V2-Lite-Instruct-GGUF:Q4_K_M  */*deepseek-coder-v2-lite*
gemma3:27b                                                gemma3:27b*
gemma3:27b-it-qat                                         gemma3:27b*
gemma3:12b-it-q8_0                                        gemma3:12b*
gemma3:4b                                                 gemma3:4b*
gemma3:latest                                             gemma3:latest
gemma3:1b                                                 *:1b*
gemma3:270m                                               *:270m*
hf.co/bartowski/google_gemma-3-27b-it-GGUF:Q4_K_M         */*gemma-3-27b*
hf.co/google/gemma-3-12b-it-qat-q4_0-gguf:latest          */*gemma-3-12b*
hf.co/unsloth/gemma-3-4b-it-GGUF:Q4_K_M                   */*gemma-3-4b*
hf.co/unsloth/gemma-3-1b-it-GGUF:Q4_K_M                   */*-1b-*
hf.co/ggml-org/gemma-3-270m-it-GGUF:Q8_0                  */*-270m-*
gemma3n:e4b
gemma3n:e2b                                               *:e2b*
hf.co/unsloth/gemma-3n-E4B-it-GGUF:Q4_K_M
gemma4:31b                                                gemma4:31b*
gemma4:26b                                                gemma4:26b*
hf.co/unsloth/gemma-4-26B-A4B-it-GGUF:UD-Q4_K_XL          */*gemma-4-26b-a4b*
gemma2:27b                                                gemma2:27b*
gemma2:9b                                                 gemma2:9b*
gemma2:2b                                                 *:2b*
codegemma:7b
mistral-large:123b-instruct-2407-q4_K_M                   mistral-large:*
mistral-large:latest                                      mistral-large:*
mistral-large:123b                                        mistral-large:*
hf.co/bartowski/Mistral-Large-Instruct-2407-GGUF:Q4_K_M   */*mistral-large*
hf.co/bartowski/Mistral-Large-Instruct-2411-GGUF:Q4_K_M   */*mistral-large*
mistral-small:22b                                         mistral-small:22b*
codestral:22b                                             codestral:*
hf.co/bartowski/Mistral-Small-Instruct-2409-GGUF:Q4_K_M   */*mistral-small-instruct-2409*
mistral-small:24b                                         mistral-small:24b*
mistral-small:latest                                      mistral-small:latest
mistral-small3.1:24b                                      mistral-small3.1:*
mistral-small3.2:latest                                   mistral-small3.2:*
hf.co/unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF:Q4_K_M  */*mistral-small-3.2-24b*
hf.co/bartowski/mistralai_Mistral-Small-3.1-24B-Instruct-2503-GGUF:Q4_K_M  */*mistral-small-3.1-24b*
hf.co/alamios/Mistral-Small-3.1-DRAFT-0.5B-GGUF:Q8_0      */*-0.?b-*
devstral:24b                                              devstral:24b*
magistral:latest                                          magistral:latest
mistral:7b
mistral:latest
mistral-nemo:12b
ministral-3:3b                                            *:3b*
mixtral:8x7b                                              mixtral:*
hf.co/TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF:Q4_K_M     */*mixtral-8x*
phi4:14b                                                  phi4:*
phi4:latest                                               phi4:*
hf.co/microsoft/phi-4-gguf:Q4_K                           */*phi-4-gguf*
hf.co/unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M             */*phi-4-mini*
phi4-mini:3.8b                                            phi4-mini:*
phi4-mini-reasoning:latest                                phi4-mini-reasoning:*
phi3:14b                                                  phi3:14b*
phi3:medium-128k                                          phi3:medium*
phi3:mini
phi:2.7b                                                  *:2.?b*
hf.co/bartowski/Phi-3.5-MoE-instruct-GGUF:Q4_K_M          */*phi-3.5-moe*
smollm2:1.7b                                              smollm2:1.7b*
smollm2:135m                                              *:135m*
smollm2:latest                                            smollm2:latest
smollm:1.7b                                               smollm:1.7b*
hf.co/bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M         */*smollm2-1.7b*
hf.co/ggml-org/SmolLM3-3B-GGUF:Q4_K_M                     */*-3b-*
granite3.3:8b                                             granite3.3:8b*
granite3.3:2b                                             *:2b*
granite3.2:latest                                         granite3.2:latest
granite3.1-dense:8b                                       granite3.1-dense:8b*
granite3-dense:latest                                     granite3-dense:latest
hf.co/bartowski/ibm-granite_granite-3.3-8b-instruct-GGUF:Q4_K_M  */*granite-3.3-8b*
granite-code:34b                                          granite-code:34b*
granite-code:8b
granite3.1-moe:3b                                         granite3.1-moe:*
hf.co/bartowski/granite-3.1-3b-a800m-instruct-GGUF:Q4_K_M */*granite-3.?-3b-a800m*
hf.co/bartowski/granite-3.1-1b-a400m-instruct-GGUF:Q4_K_M */*granite-3.?-1b-a400m*
granite4:tiny-h                                           granite4:tiny-h*
gpt-oss:20b                                               gpt-oss:*
gpt-oss:120b                                              gpt-oss:*
hf.co/unsloth/gpt-oss-20b-GGUF:F16                        */*gpt-oss-20b*
hf.co/ggml-org/gpt-oss-120b-GGUF:latest                   */*gpt-oss-120b*
gpt-oss-safeguard:20b                                     gpt-oss-safeguard:*
hf.co/unsloth/GLM-4.5-Air-GGUF:Q4_K_M                     */*glm-4.5-air*
hf.co/unsloth/ERNIE-4.5-21B-A3B-PT-GGUF:Q4_K_M            *-a3b*
hf.co/LiquidAI/LFM2-8B-A1B-GGUF:Q4_K_M                    *-a1b*
nemotron-3-nano:30b                                       nemotron-3-nano:30b*
tinyllama:latest                                          tinyllama:latest
nomic-embed-text:latest
specd-demo:latest
starcoder2:3b                                             *:3b*
starcoder2:15b
mymodel:latest
hf.co/bartowski/Meta-Llama-3-8B-Instruct-GGUF:Q4_K_M      */*llama-3-8b*
codellama:34b-instruct-q4_K_M                             codellama:34b*
codellama:70b                                             codellama:70b*
codellama:13b
codellama:latest
phind-codellama:latest                                    phind-codellama:*
hf.co/TheBloke/Phind-CodeLlama-34B-v2-GGUF:Q4_K_M         */*phind-codellama-34b*
qwen3-vl:32b                                              qwen3-vl:32b*
qwen3-vl:4b
qwen2:72b-instruct                                        qwen2:72b*
qwen2:latest                                              qwen2:latest
qwen2:1.5b                                                *:1.?b*
hf.co/Qwen/Qwen2-7B-Instruct-GGUF:Q4_K_M                  */*qwen2-7b*
deepseek-coder:6.7b                                       deepseek-coder:6.7b*
deepseek-coder:latest                                     deepseek-coder:latest
hf.co/TheBloke/deepseek-coder-33B-instruct-GGUF:Q4_K_M    */*deepseek-coder-33b*
exaone3.5:32b                                             exaone3.5:32b*
exaone3.5:latest                                          exaone3.5:latest
exaone3.5:2.4b                                            *:2.?b*
hf.co/LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct-GGUF:Q4_K_M    */*exaone-3.5-7.8b*
falcon3:10b                                               falcon3:10b*
falcon3:latest                                            falcon3:latest
hf.co/tiiuae/Falcon3-7B-Instruct-GGUF:Q4_K_M              */*falcon3-7b*
dolphin-mixtral:8x7b                                      dolphin-mixtral:*
"""

ROWS = [(row.split()[0], "".join(row.split()[1:])) for row in TABLE.strip().splitlines()]


def test_the_table_is_long_enough_and_names_nothing_twice() -> None:
    assert len(ROWS) >= 120
    assert [name for name, n in Counter(name for name, _ in ROWS).items() if n > 1] == []


def test_each_real_name_gets_the_rule_that_is_meant_for_it() -> None:
    rules = [(name, RULES.rule_for(parse(name).short)) for name, _ in ROWS]
    assert [(name, rule.winning_pattern if rule else "") for name, rule in rules] == list(ROWS)


def test_no_two_rules_are_equally_close_to_a_name() -> None:
    names_of_two_rules = []
    for name, _ in ROWS:
        weights = sorted((rule.weight(name) for rule in PACKAGED), reverse=True)
        if weights[0] != -1 and weights[0] == weights[1]:
            names_of_two_rules.append(name)
    assert names_of_two_rules == []


def test_no_pattern_is_written_twice() -> None:
    patterns = Counter(pattern.lower() for rule in PACKAGED for pattern in rule.targets)
    assert [pattern for pattern, n in patterns.items() if n > 1] == []


@pytest.mark.parametrize(
    "target,drafter",
    [
        ("llama3.3:latest", "llama3.2:1b"),
        ("llama3.1:8b-instruct-q8_0", "llama3.2:1b"),
        ("qwen3:32b", "qwen3:0.6b"),
        ("qwen3:8b", "qwen3:0.6b"),
        ("qwen2.5-coder:32b", "qwen2.5-coder:0.5b"),
        ("qwen2.5:14b", "qwen2.5:0.5b"),
        ("gemma3:27b-it-qat", "gemma3:1b"),
        ("gemma3:12b", "gemma3:270m"),
        ("deepseek-r1:32b", "deepseek-r1:1.5b"),
        ("mistral-small3.2:24b", "hf.co/alamios/Mistral-Small-3.1-DRAFT-0.5B-GGUF"),
        ("granite3.3:8b", "granite3.3:2b"),
        ("smollm2:1.7b", "smollm2:135m"),
    ],
)
def test_the_rules_of_published_families_have_models_to_pull(target: str, drafter: str) -> None:
    found = RULES.rule_for(target)
    assert found is not None
    assert found.pull[0] == drafter


@pytest.mark.parametrize(
    "target,words",
    [
        ("gpt-oss:20b", "mixture of experts"),
        ("qwen3:30b-a3b", "3 B active"),
        ("qwen3-coder:30b", "3 B active"),
        ("granite3.1-moe:3b", "few active"),
        ("llama4:scout", "vocabulary of Llama 4"),
        ("llama3.2:1b", "about 3 B or less"),
        ("mixtral:8x7b", "Mistral 7B"),
    ],
)
def test_pairs_that_would_lose_are_refused_with_a_reason(target: str, words: str) -> None:
    found = RULES.rule_for(target)
    assert found is not None
    assert found.drafters == ()
    assert words in found.reason


@pytest.mark.parametrize("rule", PACKAGED, ids=lambda rule: str(rule.targets[0]))
def test_a_packaged_rule_is_complete(rule: Rule) -> None:
    """A rule has a source, and drafters to pull (which match its own patterns) or a reason."""
    assert rule.source.startswith("https://")
    assert rule.pull or rule.reason
    assert not rule.reason.endswith(".")  # it becomes the end of a sentence
    assert (rule.draft_length is None) == (not rule.drafters)
    for name in rule.pull:
        assert any(matches(pattern, parse(name).short) for pattern in rule.drafters), name
        # A pulled drafter must not itself be a target of the rule.
        assert not any(matches(pattern, parse(name).short) for pattern in rule.targets), name
    for pattern in rule.drafters:
        assert not is_file(pattern)
        assert n_literal_letters(pattern) >= 6, pattern


def test_every_published_figure_names_its_source() -> None:
    data = tomllib.loads(packaged_file().read_text(encoding="utf-8"))
    measured = [one for entry in data["pair"] for one in entry.get("measured", ())]
    assert len(measured) >= 10
    for one in measured:
        assert one["source"].startswith("https://"), one


def test_a_rule_that_expects_a_gain_names_drafters() -> None:
    for rule in PACKAGED:
        assert not rule.expected or rule.drafters
        assert all(0.5 < gain < 4 for gain in rule.expected.values())
