"""Prepare the environment of tests/runtime/serving/test_triton.py: python triton_environment.py FOLDER

The packages of this interpreter's environment are to be found there after its own, and the backend's program for this
version of Python lies where the server looks for it.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

own = next(Path(sys.argv[1]).glob("lib/python*/site-packages"))
Path(own, "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
server = own / "pytriton" / "tritonserver"
program = "triton_python_backend_stub"
version = f"{sys.version_info.major}.{sys.version_info.minor}"
shutil.copyfile(server / "python_backend_stubs" / version / program, server / "backends" / "python" / program)
for path in (server / "bin" / "tritonserver", server / "backends" / "python" / program):
    path.chmod(0o755)
