"""Compilation of grammars for one vocabulary, in threads of its own, so that no step waits."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specd.core import Grammar, GrammarKind, TokenId
from specd.engine.backend import Vocabulary
from specd.engine.detokenizer import split_at_control_tokens
from specd.engine.grammar.sandbox import Sandbox
from specd.engine.grammar.state import GrammarState, NoAllowedToken, TokenTable
from specd.engine.grammar.translation import ThinkingTags, compile_matcher, grammar_error

log = logging.getLogger("specd.engine")

#: Longest token in bytes that llguidance's trie can hold; a longer one would end the thread.
_LONGEST_TOKEN = 1024
#: Number of compiled grammars to keep, since clients send the same few again and again.
_MAX_CACHED = 16
#: Number of grammars to check at the same time; a slow one blocks only its own thread.
_N_THREADS = 3


class _TokenizerAdapter:
    """The interface of a vocabulary for LLTokenizer, which never tokenizes without forced text."""

    #: GrammarState handles end tokens; the library adds its own one after the vocabulary.
    eos_token_id: TokenId | None = None
    bos_token_id: TokenId | None = None
    special_token_ids: Sequence[TokenId] = ()

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens

    def __call__(self, text: object) -> list[TokenId]:
        raise AssertionError(f"unexpected call to tokenize {text!r}")


class GrammarCompiler:
    """The compiler of one engine, with several threads, so that a slow grammar delays no other."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.sandbox = Sandbox()
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="grammar")
        #: Guards the cache and the token table.
        self._lock = threading.Lock()
        self._cache: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def submit(self, grammar: Grammar) -> Future[GrammarState]:
        """Return a future of the grammar's initial state; it may raise InvalidRequest."""
        return self._threads.submit(self.compile, grammar)

    def compile(self, grammar: Grammar) -> GrammarState:
        """Return the grammar's initial state.

        Raises InvalidRequest if the grammar is invalid, too complex, or allows nothing.
        """
        # Clients that send one grammar send others.  The process starts while the table is built.
        self.sandbox.start()
        with self._lock:
            table, is_known = self.table, grammar in self._cache
        if not is_known and grammar.kind is not GrammarKind.JSON:
            self.sandbox.check(replace(grammar, thinking=None))
        with self._lock:
            start = self._cache.get(grammar)
            if start is None:
                start = self._cache[grammar] = self._compile(grammar)
            self._cache.move_to_end(grammar)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
            return GrammarState(start, table)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        start = compile_matcher(grammar, self.table.tokenizer, self.thinking_tags(grammar))
        for warning in start.get_grammar_warnings():
            log.info("the grammar is enforced only in part: %s", warning)
        try:
            GrammarState(start, self.table).mask()
        except NoAllowedToken as error:
            raise grammar_error(grammar, "no token of this model can begin an answer") from error
        return start

    def thinking_tags(self, grammar: Grammar) -> ThinkingTags | None:
        if grammar.thinking is None:
            return None
        opening, closing = (
            tuple(split_at_control_tokens(tag, self._vocabulary)) for tag in grammar.thinking
        )
        return ThinkingTags(opening, closing, self.table.control_tokens)

    @cached_property
    def table(self) -> TokenTable:
        """The token table, built for the first grammar: about 1 s for a large vocabulary."""
        vocabulary = self._vocabulary
        ids = range(vocabulary.n_vocab)
        eog_tokens = frozenset(token for token in ids if vocabulary.is_eog(token))
        token_bytes = [vocabulary.piece(token) for token in ids]
        for token in ids:
            if token in eog_tokens or len(token_bytes[token]) > _LONGEST_TOKEN:
                token_bytes[token] = b""
        return TokenTable(
            tokenizer=LLTokenizer(TokenizerWrapper(_TokenizerAdapter(token_bytes))),
            n_vocab=len(token_bytes),
            eog_tokens=eog_tokens,
            control_tokens=tuple(
                token for token in ids if not token_bytes[token] and token not in eog_tokens
            ),
        )
