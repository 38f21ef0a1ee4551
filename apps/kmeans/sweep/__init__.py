"""Fits of several numbers of clusters at the same time, on one GPU: each kernel reads X once for all of them."""
