"""How reports and pages look: one column that a phone can show, both themes, and paper."""

from __future__ import annotations

from meshplan.report.palette import CHART_CSS, theme_css

DOCUMENT_CSS = (
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--mp-paper);color:var(--mp-ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI','Noto Sans','Noto Sans CJK SC',sans-serif}"
    "main{max-width:60rem;margin:0 auto;padding:1rem}"
    "h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.25rem;margin:2rem 0 .5rem}"
    "h3{font-size:1.05rem;margin:1.25rem 0 .4rem}p{margin:.5rem 0}"
    "a{color:var(--mp-link)}code,pre{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:.9em}"
    "pre{background:var(--mp-panel);padding:.75rem;overflow-x:auto;border-radius:.3rem;white-space:pre-wrap;"
    "overflow-wrap:anywhere}"
    ".soft{color:var(--mp-soft)}.bad{color:var(--mp-limit)}.good{color:var(--mp-good)}"
    # Shadows at the edges of what can be scrolled sideways, where there is more.
    "figure,.wide{overflow-x:auto}.wide{background:"
    "linear-gradient(90deg,var(--mp-paper) 40%,transparent) 0 0/3rem 100% no-repeat local,"
    "linear-gradient(270deg,var(--mp-paper) 40%,transparent) 100% 0/3rem 100% no-repeat local,"
    "linear-gradient(90deg,var(--mp-edge),transparent) 0 0/.7rem 100% no-repeat scroll,"
    "linear-gradient(270deg,var(--mp-edge),transparent) 100% 0/.7rem 100% no-repeat scroll}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}"
    "caption{text-align:left;color:var(--mp-soft);padding:.25rem 0}"
    "th,td{padding:.3rem .6rem .3rem 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid var(--mp-line)}"
    "th{font-weight:600}td.num,th.num{text-align:right}td.keep{white-space:nowrap}td.plan{min-width:9rem}"
    "tr.chosen{background:var(--mp-band)}"
    "figure{margin:.5rem 0 1rem}figure .mp-mesh{min-width:36rem}"
    "figure .mp-timeline{min-width:44rem}"
    "figcaption{color:var(--mp-soft);font-size:.9rem}"
    ".facts{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:.75rem 0;padding:0}"
    ".facts div{min-width:7rem}.facts dt{color:var(--mp-soft);font-size:.85rem}"
    ".facts dd{margin:0;font-size:1.15rem;font-weight:600}"
    "@media screen and (max-width:40rem){table{font-size:.8rem}th,td{padding-right:.35rem}"
    ".less{display:none}td.plan{min-width:6rem}td.memory{white-space:normal}"
    ".stack thead{display:none}.stack tr{display:block;padding:.3rem 0;"
    "border-bottom:1px solid var(--mp-line)}"
    ".stack td{display:block;border:0;padding:0}.stack td:first-child{font-weight:600}}"
    "details{margin:.5rem 0}summary{cursor:pointer;font-weight:600}"
    "li{margin:.15rem 0}footer{color:var(--mp-soft);margin-top:2.5rem;font-size:.9rem}"
)
PRINT_CSS = (
    "@page{margin:14mm}"
    "@media print{body{font-size:10pt}main{max-width:none;padding:0}figure,tr,pre{break-inside:avoid}"
    "h2,h3{break-after:avoid}figure .mp-chart{min-width:0}figure,.wide{overflow:visible}"
    "details::details-content{content-visibility:visible}a{color:inherit}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
)


def document_css() -> str:
    """All the style of a report."""
    return theme_css(":root") + DOCUMENT_CSS + CHART_CSS + PRINT_CSS
