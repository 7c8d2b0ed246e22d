"""GET /docs: a page that shows /openapi.json, and sends requests to try. One file, nothing from elsewhere.

The page's policy lets it run its own script alone and talk to this server alone. What the document says is put into
the page as text. There is no off switch: the page tells what /openapi.json tells.
"""

from __future__ import annotations

import base64
import hashlib

from starlette.responses import Response

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#222;background:#fff}
details{border:1px solid #ccc;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}b{display:inline-block;min-width:4rem}table{border-collapse:collapse;width:100%}
td{border-top:1px solid #ddd;padding:.2rem .5rem;vertical-align:top}pre,textarea{font:13px/1.4 monospace}
textarea,input{box-sizing:border-box;width:100%}pre{background:#f4f4f4;overflow:auto;padding:.5rem;max-height:24rem;
white-space:pre-wrap}@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}pre,textarea,input{
background:#222;color:#ddd}td{border-color:#444}}
"""

_SCRIPT = """
'use strict';
const make=(tag,text,parent)=>{const e=document.createElement(tag);
 if(text)e.textContent=text;parent.append(e);return e};
const root=document.getElementById('paths'),key=document.getElementById('key');
const kind=s=>s.$ref?s.$ref.split('/').pop():s.anyOf?s.anyOf.map(kind).filter(k=>k!=='null').join(' or '):
 s.enum?s.enum.map(v=>JSON.stringify(v)).join(', '):s.type==='array'?'list of '+kind(s.items||{}):s.type||'any';
function fields(schema,parent){const t=make('table','',parent),need=schema.required||[];
 for(const[name,s]of Object.entries(schema.properties||{})){const r=make('tr','',t);
  make('td',name+(need.includes(name)?' *':''),r);make('td',kind(s),r);
  make('td',s.default===undefined||s.default===null?'':String(s.default),r)}}
async function attempt(method,path,area,out){const h={};if(key.value)h.authorization='Bearer '+key.value;
 const o={method,headers:h};if(area){h['content-type']='application/json';o.body=area.value}
 out.textContent='...';try{const r=await fetch(path,o);out.textContent=r.status+'\\n';
  const d=new TextDecoder(),b=r.body.getReader();for(;;){const{done,value}=await b.read();if(done)break;
   out.textContent+=d.decode(value,{stream:true})}}catch(e){out.textContent=String(e)}}
const first={'/v1/chat/completions':{messages:[{role:'user',content:'Hello'}],max_tokens:32},
 '/v1/completions':{prompt:'The capital of France is',max_tokens:8},'/v1/embeddings':{input:'Hello'},
 '/tokenize':{prompt:'Hello'},'/detokenize':{tokens:[0]}};
fetch('openapi.json').then(r=>r.json()).then(doc=>{
 for(const[path,item]of Object.entries(doc.paths))for(const[method,op]of Object.entries(item)){
  if(!op.summary)continue;const d=make('details','',root),s=make('summary','',d);
  make('b',method.toUpperCase(),s);s.append(path+'  ');make('span',op.summary,s);
  let area=null;const body=op.requestBody;
  if(body){const ref=body.content['application/json'].schema.$ref.split('/').pop();
   fields(doc.components.schemas[ref],d);area=make('textarea','',d);area.rows=6;area.spellcheck=false;
   area.value=JSON.stringify(first[path]||{},null,1)}
  if(path.includes('{'))continue;const go=make('button','Send',d),out=make('pre','',d);
  go.onclick=()=>attempt(method.toUpperCase(),path,area,out)}
}).catch(e=>{root.textContent=String(e)});
"""

_PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Octavo: the HTTP API</title><style>{_STYLE}</style>
<h1>The HTTP API</h1>
<p>Made from <a href="openapi.json">openapi.json</a>. A star: the field is needed. Third column: the default.</p>
<label>API key, where the server asks for one <input id="key" type="password" autocomplete="off"></label>
<div id="paths"></div><script>{_SCRIPT}</script></html>
"""

_DIGEST = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode("ascii")
_POLICY = (
    f"default-src 'none'; script-src 'sha256-{_DIGEST}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def docs_page(headers: dict[str, str]) -> Response:
    """headers: what every response has."""
    own = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(_PAGE, 200, {**own, **headers}, "text/html")
