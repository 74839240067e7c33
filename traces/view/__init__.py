"""The viewer's document, one plain JSON value; each file makes one section of it.

The page draws the document and computes nothing from it but pixels. Times are milliseconds since
decoding began (the end of the last prefill), so runs share one axis and prefill has negative times.
A run in progress works, too.
"""
