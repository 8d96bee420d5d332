"""An NPU, reached by pyxrt alone, and in a process of its own: pyxrt holds Python's lock while it
waits, and a wrong argument can end the process.
"""
