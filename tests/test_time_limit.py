import signal
import subprocess
import sys
import threading

import pytest

from tests.time_limit import limited

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm")


@pytest.mark.parametrize("waiting", ["lock", "process"])
def test_what_hangs_fails(waiting):
    sleeper = "import time; time.sleep(600)"
    with pytest.raises(pytest.fail.Exception, match=r"took longer than 0\.2 seconds"), limited(0.2):
        threading.Event().wait() if waiting == "lock" else subprocess.run([sys.executable, "-c", sleeper])


def test_each_test_has_a_limit():
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
