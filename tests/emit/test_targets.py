"""Which targets there are."""
import pytest

from tidec.emit.targets import TARGETS, target
from tidec.errors import Exit, TidecError
from tidec.shipped import folder


def test_the_echo_is_built_and_its_runner_is_shipped():
    assert (folder("runtime") / "include" / target("echo").runner).is_file()


@pytest.mark.parametrize("name", [t.name for t in TARGETS if not t.is_built])
def test_a_target_that_is_not_built_yet_says_so(name):
    with pytest.raises(TidecError) as caught:
        target(name)
    assert caught.value.exit is Exit.ENVIRONMENT
    assert name in caught.value.diagnostics[0].sentence and "will need" in caught.value.diagnostics[0].reason


def test_a_target_that_does_not_exist_is_another_mistake():
    with pytest.raises(TidecError) as caught:
        target("tpu")
    assert caught.value.exit is Exit.USAGE and "echo" in caught.value.diagnostics[0].help
