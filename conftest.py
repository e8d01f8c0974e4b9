"""Examples in docstrings name probes, kinds of ablation and tasks. Afterwards the package knows its own alone."""

import pytest
from _pytest.doctest import DoctestItem

import tests.type_checks  # noqa: F401  before the package is imported
from tests.conftest import NEW_LENS


@pytest.fixture(autouse=True)
def names_as_before(request):
    if not isinstance(request.node, DoctestItem):
        yield
        return
    if NEW_LENS and any("import HookedTransformer" in one.source for one in request.node.dtest.examples):
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    # Imported here: jaxtyping's checks are put into modules that are imported after the plugins are set up.
    from induction_memory.interventions import ablations
    from induction_memory.probes import registry as probes
    from induction_memory.task import protocol as tasks

    for name in tasks.SHIPPED:
        tasks.task_type(name)  # registers it, if nothing has
    tables = [ablations._KINDS, probes.registered, tasks._registered]
    before = [dict(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)
