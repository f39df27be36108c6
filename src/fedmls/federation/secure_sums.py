"""Secure aggregation: the server sees sums over nodes, and nothing of a single one.

Every two nodes share a secret, which their key pairs give them (X25519). From it, and from the question that both are
asked, they make the same stream of random bits (HKDF, ChaCha20), which one of them adds to its upload and the other
takes away. In the sum over all nodes that were asked nothing of the streams is left; an upload by itself, or a sum
without one of them, is as good as random (Bonawitz et al., "Practical secure aggregation for privacy-preserving machine
learning", CCS 2017, section 4; Kursawe, Danezis, Kohlweiss, PETS 2011). All cryptography is that of the package
``cryptography``. Bonawitz et al. go on to share the secrets so that nodes may drop out; here the others are asked anew,
which makes other masks.

Sums are exact. A number is written in fixed point, 128 bits with 64 after the point: it is rounded to a multiple of
2^-64, and refused if n of its size would not fit, which takes 9.2e18/n. Nothing is clipped.

The question is part of the masks: those of nodes that were asked different things do not cancel, and no two questions
have one mask.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmls.federation.codec import MessageError
from fedmls.federation.messages import Body, Envelope, Message, pack_envelope, plain
from fedmls.files import sync_folder, whole_file
from fedmls.types import Array

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

LEAST = 3  # nodes in a sum: of two, each would know the other's part
RANGE, POINT = 2.0**63, 2.0**64
COARSE = 2.0**-34  # numbers of at least this size keep nine digits
PURPOSE = b"fedmls secure sum 1"
MISSING = "secure needs the package cryptography; install it with pip install 'fedmls[secure]'"
Words = Any  # uint64 of shape (2, size): the lower and the upper half of each number


def check_secure(job: Any) -> None:
    """Refuse a job whose server needs more than sums."""
    if job.algorithm.traits.aggregate != "mean":
        raise ValueError(
            f"the server of {job.algorithm.name} needs every node's own upload, and secure shows it sums only; "
            "take another algorithm, or leave out secure"
        )
    some = job.algorithm.participants
    if some is not None:
        check_enough(some)


def check_enough(n: int) -> None:
    if n < LEAST:
        raise ValueError(f"a secure sum takes at least {LEAST} nodes, and here it would be over {n}")


def private_key(file: Path) -> "X25519PrivateKey":
    """Return the key in the file (PEM), which is made, for this user's eyes only, if there is none."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )
    except ImportError:
        raise ValueError(MISSING) from None
    if not file.exists():
        _keep(file, X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError):  # of another form, or with a password
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise ValueError(f"the key file {file.name} holds no X25519 key in PEM without a password")
    return key


def _keep(file: Path, pem: bytes) -> None:
    """Write the key to its file, on the disk before anybody is told its public part; one that is there stays."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")
    try:
        with whole_file(own, private=True) as stream:
            stream.write(pem)
        with suppress(FileExistsError):  # two that begin at once take the one that came first
            os.link(own, file)
    finally:
        own.unlink(missing_ok=True)
    sync_folder(file.parent)


def public_key(key: "X25519PrivateKey") -> bytes:
    return bytes(key.public_key().public_bytes_raw())


def check_keys(keys: Any, client: int, key: "X25519PrivateKey", peers: Sequence[str] | None) -> list[bytes]:
    """Return the public keys of all nodes, if they are what they should be.

    peers: those that a node knows, as text.
    """
    if not isinstance(keys, list) or not all(isinstance(one, bytes) and len(one) == 32 for one in keys):
        raise ValueError("the keys of the nodes are no public keys")
    check_enough(len(keys))
    if len(set(keys)) < len(keys):
        raise ValueError("two nodes have one key")
    if keys[client] != public_key(key):
        raise ValueError("its key is not the one that it began the run with")
    others = [as_text(one) for one in keys if one != keys[client]]
    strange = [] if peers is None else [text for text in others if text not in peers]
    if strange:
        raise ValueError(f"a node has the key {strange[0]}, which is none of its peers")
    return keys


def as_text(public: bytes) -> str:
    return base64.b64encode(public).decode()


def from_text(text: str) -> bytes:
    """Return the public key that :func:`as_text` has written; raise a ValueError if it is none."""
    try:
        public = base64.b64decode(text, validate=True)
    except ValueError:
        public = b""
    if len(public) != 32 or as_text(public) != text:
        raise ValueError(f"{text!r:.60} is no public key of a node; fedmls key prints one")
    return public


def fingerprint(public: bytes) -> str:
    """Return a public key in short, to be compared by word of mouth: 128 bits of its SHA-256."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def check_peers(own: bytes, peers: Sequence[str] | None, told: Sequence[str] = ()) -> list[str]:
    """Return what is wrong with the peers of a node of this key, in sentences.

    told: their keys, as they were told it.
    """
    if peers is None:
        return ["it has no peers: without them secure sums guard it against an honest server only"]
    mine = as_text(own)
    others = [key for key in dict.fromkeys(peers) if key != mine]
    wrong = [f"{key} is there twice" for key in dict.fromkeys(peers) if peers.count(key) > 1]
    if len(others) < LEAST - 1:
        wrong.append(f"of {LEAST} nodes, which a secure sum takes at least, it knows {len(others) + 1}")
    for key in told:
        from_text(key)
    if told:
        wrong += [f"{key} is none of its peers" for key in told if key not in (*others, mine)]
        wrong += [f"its peer {key} is none of the keys that were given" for key in others if key not in told]
    return wrong


def question(asked: Message[Body], *parts: Any) -> bytes:
    """Return a digest of what all nodes of a sum are asked alike."""
    whole = Envelope(asked.kind, asked.run, asked.exchange, 0, {"parts": plain(parts)})
    return hashlib.sha256(pack_envelope(whole)).digest()


def masked(
    values: Array, key: "X25519PrivateKey", keys: Sequence[bytes], client: int, among: Sequence[int], question: bytes
) -> Any:
    """Return the numbers as they leave the node, and a 1, by which the server sees that the masks are gone."""
    words = fixed(np.append(values, 1.0), len(among))
    for other in among:
        if other != client:
            stream = _stream(key, keys[other], question, words.shape[1])
            words = plus(words, stream if client < other else negative(stream))
    return words.view(np.int64)


def _stream(key: "X25519PrivateKey", other: bytes, question: bytes, size: int) -> Words:
    """Return the random numbers that two nodes have in common for this question."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = key.exchange(X25519PublicKey.from_public_bytes(other))
    once = HKDF(SHA256(), 32, salt=None, info=PURPOSE + question).derive(shared)
    bits = Cipher(ChaCha20(once, bytes(16)), mode=None).encryptor().update(bytes(16 * size))
    return np.frombuffer(bits, dtype="<u8").astype(np.uint64).reshape(2, size)


def total(parts: Iterable[Any]) -> Array:
    """Return the sum of what nodes sent, unmasked; raise a MessageError if the masks are still there."""
    words: Words = None
    for count, part in enumerate(parts, start=1):
        words = part.view(np.uint64) if count == 1 else plus(words, part.view(np.uint64))
    low, high = words[:, -1].tolist()
    if (low, high) != (0, count):
        raise MessageError("the masks do not cancel")
    return real(words[:, :-1])


def fixed(values: Array, n: int) -> Words:
    """Return numbers in fixed point; raise a ValueError where n of this size may not fit."""
    size = np.abs(values)
    if not (size < RANGE / n).all():  # nor is NaN
        raise ValueError(f"a number beyond {RANGE / n:.2g} does not fit into a secure sum of {n}")
    whole = np.floor(size)
    words = np.stack([np.rint((size - whole) * POINT), whole]).astype(np.uint64)
    return np.where(values < 0, negative(words), words)


def real(words: Words) -> Array:
    minus = words[1] >= 2**63
    size: Any = np.where(minus, negative(words), words)
    size = size.astype(float)
    return np.asarray(np.where(minus, -1.0, 1.0) * (size[1] + size[0] / POINT))


def plus(a: Words, b: Words) -> Words:
    low = a[0] + b[0]
    return np.stack([low, a[1] + b[1] + (low < a[0])])


def negative(a: Words) -> Words:
    low = ~a[0] + np.uint64(1)
    return np.stack([low, ~a[1] + (low == 0)])
