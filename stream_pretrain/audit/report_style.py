"""The report's style sheet, in light and dark, from phone to desk. The charts bring their own."""

PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1f2430;--soft:#667085;--paper:#fff;
--card:#f7f8fa;--edge:#e4e7ec}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--paper:#14171d;
--card:#1c2028;--edge:#2b303b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1064px;padding:24px 16px 64px;background:var(--paper);
color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:36px 0 10px}
p{margin:4px 0;color:var(--soft);overflow-wrap:anywhere}a{color:inherit}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:8px;
margin:18px 0}
.facts div{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:8px 12px;
min-width:0}
.facts dt{color:var(--soft);font-size:12px}.facts dd{margin:0;font-weight:600;
overflow-wrap:anywhere}
.chart{width:100%;height:auto;display:block;margin:14px 0}.narrow{display:none}
@media (max-width:640px){.narrow{display:block}.wide{display:none}}
.facts div:last-child{grid-column:span 2}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--edge);
vertical-align:top}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right}
td{white-space:nowrap}td.long{white-space:normal;overflow-wrap:anywhere;min-width:10em}
.bar{display:flex;height:22px;border-radius:6px;overflow:hidden;background:var(--edge);
margin:10px 0}
.swatch{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
pre{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px;
overflow-x:auto;
font-size:12.5px}
.b0{background:#2563eb}.b1{background:#ea580c}.b2{background:#059669}.b3{background:#db2777}
.b4{background:#98a2b3}.b5{background:#7c3aed}.b6{background:#0891b2}.b7{background:#ca8a04}
"""
