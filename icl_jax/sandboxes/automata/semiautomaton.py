"""One type for every automaton: its transitions, what is seen of a state, and how inputs are drawn.

Shape suffixes: S letters, Q states, P points, B batch, T time.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError


@dataclasses.dataclass(frozen=True, eq=False)
class Semiautomaton:
    """States move by letters; at every step one predicts the state, or what is seen of it."""

    name: str
    delta_SQ: np.ndarray  # delta[a, q]: the state after letter a
    start: int = 0  # q0
    letters: tuple[str, ...] = ()  # their names; by default their numbers
    states: tuple[str, ...] = ()
    legal_QS: np.ndarray | None = None  # which letters may come in a state; None: all
    label_Q: np.ndarray | None = None  # what is seen of a state; None: the state itself
    num_labels: int = 0  # may be more than are ever seen; 0: up to the largest of label_Q
    # Points that the letters move, and from whose places the state can be read: `image_QP[q, p]` is
    # where point p went. Permutation groups have them: 5 for the 120 states of S5.
    point_delta_SP: np.ndarray | None = None
    image_QP: np.ndarray | None = None
    # A share of the rows repeats this pattern of letters; the others are drawn as usual.
    pattern: tuple[int, ...] = ()
    pattern_share: float = 0.0

    def __post_init__(self):
        delta = np.asarray(self.delta_SQ)
        set_field = functools.partial(object.__setattr__, self)
        if (
            delta.ndim != 2 or not delta.size or not np.issubdtype(delta.dtype, np.integer)
            or delta.min() < 0 or delta.max() >= delta.shape[1]
        ):  # fmt: skip
            raise ConfigError(
                f"{self.name}: delta must be (letters, states) of states 0 to states - 1, got "
                f"{delta.dtype} of shape {delta.shape}"
            )
        set_field("delta_SQ", delta.astype(np.int32))
        set_field("letters", self.letters or tuple(map(str, range(delta.shape[0]))))
        set_field("states", self.states or tuple(map(str, range(delta.shape[1]))))
        labels = np.arange(delta.shape[1]) if self.label_Q is None else np.asarray(self.label_Q)
        set_field("label_Q", labels.astype(np.int32))
        set_field("num_labels", self.num_labels or int(labels.max()) + 1)
        found = self._problems()
        if found:
            raise ConfigError(f"{self.name}: {'; '.join(found)}")

    def _problems(self) -> list[str]:
        letters, states = self.delta_SQ.shape
        found = []
        for what, got, needed in (
            ("names of letters", len(self.letters), letters),
            ("names of states", len(self.states), states),
            ("labels", len(self.label_Q), states),
        ):
            if got != needed:
                found.append(f"expected {needed} {what}, got {got}")
        if not 0 <= self.start < states:
            found.append(f"start must be a state from 0 to {states - 1}, got {self.start}")
        if not 0 <= self.label_Q.min() <= self.label_Q.max() < self.num_labels:
            found.append(f"labels must be from 0 to {self.num_labels - 1}, got {self.label_Q}")
        if self.legal_QS is not None and self.legal_QS.shape != (states, letters):
            found.append(f"legal must be ({states}, {letters}), got {self.legal_QS.shape}")
        elif self.legal_QS is not None and not self.legal_QS.any(axis=1).all():
            found.append("every state needs a legal letter")
        if not 0 <= self.pattern_share <= 1 or any(not 0 <= a < letters for a in self.pattern):
            found.append(f"the pattern needs letters from 0 to {letters - 1} and a share from 0 to "
                         f"1, got {self.pattern} and {self.pattern_share}")  # fmt: skip
        if self.pattern_share and (not self.pattern or self.legal_QS is not None):
            found.append("a share of rows with a pattern needs the pattern, and letters that may "
                         "always come")  # fmt: skip
        return found

    @property
    def num_letters(self) -> int:
        return self.delta_SQ.shape[0]

    @property
    def num_states(self) -> int:
        return self.delta_SQ.shape[1]

    def run(self, letters_BT: np.ndarray) -> np.ndarray:
        """The state after each letter, in NumPy; stops on letters that may not come."""
        letters_BT = np.asarray(letters_BT)
        if letters_BT.ndim != 2 or not np.issubdtype(letters_BT.dtype, np.integer):
            raise ConfigError(
                f"{self.name}: letters must be integers (batch, time), got {letters_BT.dtype} of "
                f"shape {letters_BT.shape}"
            )
        if letters_BT.size and not 0 <= letters_BT.min() <= letters_BT.max() < self.num_letters:
            raise ConfigError(
                f"{self.name} has the letters 0 to {self.num_letters - 1}, got "
                f"{letters_BT.min()} to {letters_BT.max()}"
            )
        state_B = np.full(letters_BT.shape[:1], self.start, np.int32)
        states_BT = np.empty(letters_BT.shape, np.int32)
        for t in range(letters_BT.shape[1]):
            letter_B = letters_BT[:, t]
            if self.legal_QS is not None and not self.legal_QS[state_B, letter_B].all():
                self._refuse(letters_BT, t, state_B)
            state_B = states_BT[:, t] = self.delta_SQ[letter_B, state_B]
        return states_BT

    def _refuse(self, letters_BT: np.ndarray, t: int, state_B: np.ndarray) -> None:
        row = int(np.argmin(self.legal_QS[state_B, letters_BT[:, t]]))
        state = int(state_B[row])
        legal = ", ".join(self.letters[a] for a in np.flatnonzero(self.legal_QS[state]))
        raise ConfigError(
            f"{self.name}: row {row} has '{self.letters[letters_BT[row, t]]}' at place {t}, but in "
            f"the state '{self.states[state]}' only {legal} may come"
        )

    def sample(
        self, key: jax.Array, batch: int, length: int, weight_S: Sequence[float] | None = None
    ) -> dict[str, jax.Array]:
        """`letters`, `states` and `labels`, each int32 (batch, length), drawn on the device.

        Letters are uniform among the legal ones, or proportional to `weight_S`.
        """
        if batch < 1 or length < 1:
            raise ConfigError(f"expected at least 1 row of 1 letter, got {batch} of {length}")
        weight_S = self._weights(weight_S)
        letter_key, pattern_key = jax.random.split(key)
        if self.legal_QS is None:
            logits_S = jnp.log(weight_S.astype(jnp.float32))
            letters_BT = jax.random.categorical(letter_key, logits_S, shape=(batch, length))
            letters_BT = letters_BT.astype(jnp.int32)
            if self.pattern_share:
                chosen_B1 = jax.random.bernoulli(pattern_key, self.pattern_share, (batch, 1))
                repeated_T = jnp.resize(jnp.array(self.pattern, jnp.int32), (length,))
                letters_BT = jnp.where(chosen_B1, repeated_T, letters_BT)
            states_BT = self.advance(letters_BT)
        else:
            letters_BT, states_BT = self._walk(letter_key, batch, length, weight_S)
        label_Q = jnp.asarray(self.label_Q)
        return {"letters": letters_BT, "states": states_BT, "labels": label_Q[states_BT]}

    def _weights(self, weight_S: Sequence[float] | None) -> jax.Array:
        if weight_S is None:
            return jnp.ones(self.num_letters)
        if np.shape(weight_S) != (self.num_letters,):
            raise ConfigError(
                f"{self.name} has {self.num_letters} letters, got weights of shape "
                f"{np.shape(weight_S)}"
            )
        if not isinstance(weight_S, jax.core.Tracer):
            weights = np.asarray(weight_S, np.float64)
            legal = np.ones((1, len(weights)), bool) if self.legal_QS is None else self.legal_QS
            if not np.isfinite(weights).all() or (weights < 0).any():
                raise ConfigError(f"{self.name}: weights must be at least 0, got {weights}")
            if not (legal & (weights > 0)).any(axis=1).all():
                raise ConfigError(
                    f"{self.name}: every state needs a legal letter of positive weight, got "
                    f"{weights}"
                )
        return jnp.asarray(weight_S)

    def advance(self, letters_BT: jax.Array) -> jax.Array:
        """The state after each letter, on the device."""
        delta_SQ = jnp.asarray(self.delta_SQ)

        def step(state_B, letter_B):
            state_B = delta_SQ[letter_B, state_B]
            return state_B, state_B

        start_B = jnp.full(letters_BT.shape[:1], self.start, jnp.int32)
        return jax.lax.scan(step, start_B, letters_BT.T)[1].T

    def _walk(self, key: jax.Array, batch: int, length: int, weight_S: jax.Array):
        """Letters one after another, each among those that are legal in its state."""
        delta_SQ = jnp.asarray(self.delta_SQ)
        logits_QS = jnp.where(self.legal_QS, jnp.log(weight_S.astype(jnp.float32)), -jnp.inf)

        def step(state_B, key):
            letter_B = jax.random.categorical(key, logits_QS[state_B]).astype(jnp.int32)
            state_B = delta_SQ[letter_B, state_B]
            return state_B, (letter_B, state_B)

        start_B = jnp.full((batch,), self.start, jnp.int32)
        letters_TB, states_TB = jax.lax.scan(step, start_B, jax.random.split(key, length))[1]
        return letters_TB.T, states_TB.T

    def observed(self, name: str, label: Callable[[int], int], num_labels: int) -> "Semiautomaton":
        """The same automaton, of whose states only `label(state)` is seen."""
        labels = np.array([label(q) for q in range(self.num_states)], np.int32)
        return dataclasses.replace(self, name=name, label_Q=labels, num_labels=num_labels)
