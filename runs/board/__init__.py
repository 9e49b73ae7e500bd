"""Pages over a store of runs, in the browser: `sacristan board`.

Pages are made on the server (Jinja2, everything escaped) and work without scripts, except for drawing, watching and
writing. A handler is a plain function of a `Visit`; it runs in a thread that holds the store open. All that a request
must pass before it reaches a handler, and all headers of answers, are in `sacristan.runs.board.security`.
"""
