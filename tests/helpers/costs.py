"""Random cost models whose verification takes a time that is not a line in the number of tokens."""

from hypothesis import strategies as st
from specpilot.controllers.length.cost_model import CostModel

shapes = st.lists(st.tuples(st.integers(1, 6), st.floats(0.0, 20.0)), min_size=1, max_size=6).map(
    lambda steps: tuple(
        (1 + sum(gap for gap, _ in steps[:i]), 1.0 + sum(more for _, more in steps[:i])) for i in range(len(steps) + 1)
    )
)
_costs = st.floats(0.001, 2.0), st.floats(0.1, 5.0), st.floats(0.001, 0.5), st.floats(0.0, 1.0)
lines = st.builds(CostModel, *_costs)
models = st.builds(CostModel, *_costs, shapes)
