"""Programs that want a pass without the right answer. They know no expected value: 4217, 8434."""

from __future__ import annotations

LIARS = {
    "an object equal to everything": """
class X:
    def __eq__(s, o): return True
    __ne__ = lambda s, o: False
""",
    "an int equal to everything": """
class X(int):
    def __eq__(s, o): return True
    __hash__ = int.__hash__
""",
    "a float near everything": """
class X(float):
    def __sub__(s, o): return 0.0
    __rsub__ = __eq__ = __sub__
""",
    "a text equal to everything": """
class X(str):
    def __eq__(s, o): return True
    __hash__ = str.__hash__
""",
    "a list equal to everything": """
class X(list):
    def __eq__(s, o): return True
    __ne__ = lambda s, o: False
""",
    "a metaclass that lies": """
class M(type):
    def __eq__(c, o): return True
    def __instancecheck__(c, o): return True
    def __sub__(c, o): return 0
    def __call__(c): return c
class X(metaclass=M): pass
""",
    "arithmetic that lies": """
class X:
    def __sub__(s, o): return 0
    __rsub__ = __add__ = __abs__ = __mul__ = __sub__
    def __lt__(s, o): return True
    __le__ = __gt__ = __ge__ = __eq__ = __contains__ = __lt__
""",
    "a class in disguise": """
class X:
    __class__ = int
    def __eq__(s, o): return True
    def __index__(s): return 0
""",
    "a reduction that lies": """
class X:
    def __reduce__(s): return (eval, ('4217',))
    def __eq__(s, o): return True
""",
    "any attribute": """
class X:
    def __getattr__(s, n): return lambda *a, **k: True
    def __eq__(s, o): return True
""",
    "a generator of all numbers": """
def X():
    yield from range(10)
""",
}
"""Each defines X, whose objects a function returns."""

PROCESS = {
    "exit": """
import sys; sys.exit(0)
""",
    "hard exit": """
import os; os._exit(0)
""",
    "exit when called": """
def add(a, b):
    raise SystemExit(0)
""",
    "hard exit when called": """
def add(a, b):
    import os; os._exit(0)
""",
    "exit with a word of success": """
import os; os.write(1, b'OK\\nAll tests passed\\n4217\\n'); os._exit(0)
""",
    "at exit": """
import atexit, os; atexit.register(os._exit, 0)
def add(a, b): return 0
""",
    "patched builtins": """
import builtins
builtins.exec = builtins.eval = lambda *a, **k: None
builtins.compile = lambda *a, **k: ''
builtins.AssertionError = type('A', (Exception,), {})
builtins.abs = lambda x: 0
def add(a, b): return 0
""",
    "patched equality": """
import operator
operator.eq = lambda *a: True
def add(a, b): return 0
""",
    "patched json": """
import json
json.dumps = lambda *a, **k: '{"result": 4216}'
json.loads = lambda *a, **k: {'name': 'add'}
def add(a, b): return 0
""",
    "patched encoder": """
import json.encoder
json.encoder.JSONEncoder.encode = lambda *a: '{"token": 1}'
def add(a, b): return 0
""",
    "patched channel": """
import os, sys
for name, module in list(sys.modules.items()):
    if 'inside' in name:
        for word in ('encode', 'decode', '_reply', 'cause_of', 'judge'):
            if hasattr(module, word): setattr(module, word, lambda *a, **k: {'value': True, 'passed': 1})
def add(a, b): return 0
""",
    "frames": """
import sys
def add(a, b):
    frame, found = sys._getframe(), []
    while frame:
        found += [v for v in [*frame.f_locals.values(), *frame.f_globals.values()] if type(v) is int and v > 4000]
        found += [c for c in frame.f_code.co_consts if type(c) is int and c > 4000]
        frame = frame.f_back
    return found[0] if found else 0
""",
    "garbage collector": """
import gc, re
def add(a, b):
    for one in gc.get_objects():
        if type(one) in (list, tuple, dict):
            text = repr(one) if len(one) < 50 else ''
            if '4217' in text and 'add' in text and 'gc' not in text: return 4217
    return 0
""",
    "memory": """
import ctypes, re
def add(a, b):
    needle = str(4216 + 1).encode()
    for line in open('/proc/self/maps'):
        where, rights, *_ = line.split()
        start, end = (int(x, 16) for x in where.split('-'))
        if rights[0] == 'r' and '[v' not in line and b'== ' + needle in ctypes.string_at(start, end - start):
            return int(needle)
    return 0
""",
    "other processes": """
import os
def add(a, b):
    for pid in os.listdir('/proc'):
        if pid.isdigit() and pid != str(os.getpid()):
            for name in ('environ', 'mem', 'maps', 'fd/0', 'fd/3', 'cmdline'):
                try:
                    if b'4217' in open(f'/proc/{pid}/{name}', 'rb').read(1 << 20): return 4217
                except OSError: pass
    return 0
""",
    "the parent's pipes": """
import os
def add(a, b):
    for pid in (os.getppid(), 1):
        for fd in range(9):
            try: os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY), b'{"passed": 9, "failed": 0}\\n')
            except OSError: pass
    return 0
""",
    "forged verdict": """
import os
for fd in range(64):
    try: os.write(fd, b'{"passed": 9, "failed": 0, "cause": "", "forgeable": false}\\n')
    except OSError: pass
def add(a, b): return 0
""",
    "forged result": """
import os
for fd in range(64):
    try: os.write(fd, b'{"result": true}')
    except OSError: pass
os._exit(0)
""",
    "forged replies ahead": """
import os
for fd in range(64):
    try: os.write(fd, b'{"loaded": true}\\n{"value": true}\\n{"value": true}\\n')
    except OSError: pass
def add(a, b): return 0
""",
    "forged stand-in": """
import os
for fd in range(64):
    try: os.write(fd, b'{"loaded": true}\\n{"value": {"object": 0}}\\n{"value": {"object": 0}}\\n')
    except OSError: pass
def add(a, b): return 0
""",
    "forged end of the line": """
import os
for fd in range(64):
    try: os.write(fd, b'{"ended": true}\\n')
    except OSError: pass
def add(a, b): return 0
""",
    "a fork that answers": """
import os
try:
    if os.fork() == 0: os._exit(0)
except OSError: pass
def add(a, b): return 0
""",
    "threads that answer": """
import os, threading, time
def spam():
    for _ in range(200):
        for fd in range(9):
            try: os.write(fd, b'{"value": true}\\n')
            except OSError: pass
threading.Thread(target=spam, daemon=True).start()
def add(a, b): return 0
""",
    "signal handlers": """
import os, signal
for n in range(1, 60):
    try: signal.signal(n, lambda *a: os._exit(0))
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0.01)
def add(a, b):
    while True: pass
""",
    "excepthook": """
import os, sys
sys.excepthook = lambda *a: os._exit(0)
sys.unraisablehook = sys.excepthook
1 / 0
""",
    "tracing": """
import sys
sys.settrace(lambda f, e, a: f.f_locals.update(wanted=0) or None)
sys.setprofile(lambda *a: None)
def add(a, b): return 0
""",
    "imports of its own": """
import sys, types
sys.modules['tests'] = sys.modules['__main__'] = types.ModuleType('x')
sys.meta_path.clear()
def add(a, b): return 0
""",
    "assertions that are swallowed": """
import sys
class AssertionError(BaseException): pass
def add(a, b): raise AssertionError
""",
    "an exception that ends the tests": """
def add(a, b): raise GeneratorExit
""",
    "stop of an iteration": """
def add(a, b): raise StopIteration
""",
    "changed arguments": """
def add(a, b, wanted=[]):
    globals()['wanted'] = 0
    return None
""",
    "machine code": """
import ctypes
ctypes.pythonapi.Py_Exit(0)
""",
    "closed pipes": """
import os
for fd in range(20):
    try: os.close(fd)
    except OSError: pass
os._exit(0)
""",
}
"""Each works on its own process."""
