"""One self-contained HTML page of figures and tables from the records of any benchmark.

`records` reads and checks the files, one module a section turns records into figures and tables, `charts` draws SVG,
and `page` puts the sections into the template.
"""
