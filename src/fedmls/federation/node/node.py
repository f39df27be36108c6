"""The client's side: hands each message to what answers its kind.

A node needs nothing but its configuration: it may stay in memory, or be made anew for every message. Its state folder
holds one file for each run (:mod:`fedmls.federation.node.state`), written before a reply leaves. A message delivered
twice gets the same reply; if the server never saw the reply and went on without it, the node goes back to the state
before; and a message that comes after a later one is not answered.
"""

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmls.federation.codec import MEBIBYTE, MessageError
from fedmls.federation.errors import Refused
from fedmls.federation.locks import exclusive
from fedmls.federation.messages import Begin, Body, Message, Refusal, Round, Score, Sums, Survey, decode, encode
from fedmls.federation.node.first_exchanges import answer_begin, answer_sums, answer_survey
from fedmls.federation.node.last_exchange import answer_score
from fedmls.federation.node.rounds import answer_round
from fedmls.federation.node.site import Site
from fedmls.federation.node_config import NodeConfig

MOST_BYTES = 1024 * MEBIBYTE
MEMORY = 64  # bytes for each of a message, at most: whole and short numbers take a bit each, at least
LOG = "errors.log"
ANSWERS: dict[type[Any], Callable[[Site, Message[Any]], bytes]] = {
    Survey: answer_survey,
    Sums: answer_sums,
    Begin: answer_begin,
    Round: answer_round,
    Score: answer_score,
}


class Node:
    """One client of a federation: ``Node(config).answer(message)`` for a configuration or its file."""

    def __init__(self, config: NodeConfig | str | Path) -> None:
        self.config = config if isinstance(config, NodeConfig) else NodeConfig.read(config)
        self.name, self.site = self.config.name, Site(self.config)
        self.state = self.site.state

    def answer(self, message: bytes) -> bytes:
        """Return the reply. What goes wrong is told in a reply, too, in words that hold nothing of a row."""
        asked: Message[Body] = Message("unknown", 0, 0, Refusal(None))
        try:
            asked = decode(message, MOST_BYTES, min(MEMORY * len(message), MOST_BYTES))
            if type(asked.body) not in ANSWERS:
                raise Refused(f"a node answers no message of the kind {asked.kind!r}")
            self.state.make()
            with exclusive(self.config.state / "lock", wait=True):  # a slow answer must not overwrite a later state
                return ANSWERS[type(asked.body)](self.site, asked)
        except (Refused, MessageError) as error:
            why = str(error)
        except Exception as error:
            why = self._failed(error)
        return encode(asked.reply(Refusal(why)))

    def _failed(self, error: Exception) -> str:
        """Return what may be told of an error that nobody has foreseen; the rest goes to the log."""
        with suppress(OSError):
            self.state.make()
            self.state.append(LOG, "".join(traceback.format_exception(error)) + "\n")
            return f"it failed ({type(error).__name__}); its file {LOG} says more"
        return f"it failed ({type(error).__name__}), and its state folder cannot be written"
